// One reader of records for each format. record_files.h is the public side.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/input.h"
#include "lockstep/data/records.h"

namespace lockstep::internal {

/// What the readers of all formats share: places, and that a reader which cannot go on behind an error is at its end.
class ReaderBase : public data::RecordReader {
 public:
  bool next(std::string& bytes) final {
    bytes.clear();
    if (at_end_) return false;
    place_ = next_;
    try {
      at_end_ = !read(bytes);
    } catch (...) {
      bytes.clear();
      at_end_ = next_.record == place_.record;
      throw;
    }
    return !at_end_;
  }
  data::RecordPlace place() const final { return place_; }

 protected:
  ReaderBase(Input input, const data::RecordPlace& at, int64_t max_bytes)
      : input_(std::move(input)), max_bytes_(static_cast<uint64_t>(max_bytes)), next_(at), place_(at) {}

  /// Appends the record at place_; false at the end. Calls move_on() once it knows where the next record begins.
  virtual bool read(std::string& bytes) = 0;

  /// The next record begins at byte `offset`.
  void move_on(int64_t offset) { next_ = {place_.file, place_.record + 1, offset}; }

  /// Throws the DataError of a bad record, the one at place_. Where move_on() was not called before, the rest of the
  /// file counts as lost.
  [[noreturn]] void throw_bad(const std::string& what) const {
    const bool lost = next_.record == place_.record;
    throw DataError("LS-DATA-RECORD",
                    fmt::format("'{}', record {} at byte {}: {}{}", input_.name(), place_.record, place_.offset, what,
                                lost ? "; the rest of the file cannot be read" : ""),
                    "get the file again, or skip the records that cannot be read");
  }

  Input input_;
  const uint64_t max_bytes_;

 private:
  data::RecordPlace next_;
  data::RecordPlace place_;
  bool at_end_ = false;
};

/// Readers of `input`, whose next byte is the first of the record at `at`. A record of more than `max_bytes` bytes is a
/// bad one.
std::unique_ptr<data::RecordReader> make_line_reader(Input input, const data::RecordPlace& at, int64_t max_bytes);
std::unique_ptr<data::RecordReader> make_tf_record_reader(Input input, const data::RecordPlace& at, int64_t max_bytes);
std::unique_ptr<data::RecordReader> make_tar_reader(Input input, const data::RecordPlace& at, int64_t max_bytes);

}  // namespace lockstep::internal
