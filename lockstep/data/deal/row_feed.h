// A stream as rows: elements are cut and joined to the numbers of rows that are asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/stream.h"

namespace lockstep::internal::inline data {

/// Throws a DataError that names `who` unless an element's tensors are dense, plain and in the host's memory, with one
/// row each for each row of its input, and its ids, where it has some, are int64 [rows].
void check_element(const Batch& element, const std::string& who);

/// One thread at a time.
class RowFeed {
 public:
  /// Continues at a position that position() gave.
  RowFeed(const lockstep::data::Stream& stream, const lockstep::data::StreamPass& pass,
          const lockstep::data::StreamPosition& position);

  /// The next `count` rows; fewer at the end, and then nothing at all. Where samples are skipped, rows are left out
  /// whose dtypes or shapes differ from those of most of these rows.
  std::optional<Batch> take(int64_t count);
  /// The next `count` rows by themselves, each in memory of its own; they need not be alike.
  std::vector<Batch> take_each(int64_t count);
  /// The same of take_element().
  std::vector<Batch> take_each_of_element();
  /// How many rows the last take() or take_each() has used, with those that it has left out.
  int64_t taken() const { return taken_; }
  /// The rest of the present element, or the next one.
  std::optional<Batch> take_element();
  /// The place behind the last row that was taken.
  lockstep::data::StreamPosition position() const;

 private:
  /// Makes sure that there are rows; false at the end.
  bool has_rows();

  const std::shared_ptr<const lockstep::data::StreamSource> source_;
  const std::string who_;
  const std::shared_ptr<lockstep::data::SkippedSamples> skipped_;
  std::unique_ptr<lockstep::data::StreamReader> reader_;
  lockstep::data::StreamPosition before_;  // of the present element
  Batch element_;
  int64_t rows_ = 0;  // of it
  int64_t used_ = 0;  // of them
  int64_t taken_ = 0;
  bool ended_ = false;
};

}  // namespace lockstep::internal::data
