// One reader of records for each format. record_files.h is the public side.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/input.h"
#include "lockstep/data/sources/records.h"

namespace lockstep::internal::inline data {

/// What a reader throws that cannot go on: the rest of its file is lost, from the record on that the message names.
class RestOfFileError : public DataError {
 public:
  using DataError::DataError;
};

/// What the readers of all formats share: places, and that a reader which cannot go on behind an error is at its end.
class ReaderBase : public lockstep::data::RecordReader {
 public:
  bool next(std::string& bytes) final {
    bytes.clear();
    if (at_end_) return false;
    place_ = next_;
    try {
      at_end_ = !read(bytes);
    } catch (const InputError& error) {
      bytes.clear();
      at_end_ = true;
      throw RestOfFileError("LS-DATA-FILE",
                            fmt::format("{}; record {}, at byte {}, and what follows it cannot be read, and how many "
                                        "records these are is not known",
                                        error.fact(), next_.record, next_.offset),
                            error.remedy());
    } catch (...) {
      bytes.clear();
      at_end_ = next_.record == place_.record;
      throw;
    }
    return !at_end_;
  }
  lockstep::data::RecordPlace place() const final { return place_; }

 protected:
  ReaderBase(Input input, const lockstep::data::RecordPlace& at, int64_t max_bytes)
      : input_(std::move(input)), max_bytes_(static_cast<uint64_t>(max_bytes)), next_(at), place_(at) {}

  /// Appends the record at place_; false at the end. Calls move_on() once it knows where the next record begins.
  virtual bool read(std::string& bytes) = 0;

  /// The next record begins at byte `offset`.
  void move_on(int64_t offset) { next_ = {place_.file, place_.record + 1, offset}; }

  /// Throws the DataError of a bad record, the one at place_. Where move_on() was not called before, the rest of the
  /// file counts as lost.
  [[noreturn]] void throw_bad(const std::string& what, const std::string& remedy =
                                                           "get the file again, or skip the records that cannot be "
                                                           "read") const {
    const std::string fact =
        fmt::format("'{}', record {} at byte {}: {}", input_.name(), place_.record, place_.offset, what);
    if (next_.record != place_.record) throw DataError("LS-DATA-RECORD", fact, remedy);
    throw RestOfFileError("LS-DATA-RECORD",
                          fact + "; the rest of the file cannot be read, and how many records it has is not known",
                          remedy);
  }

  Input input_;
  const uint64_t max_bytes_;

 private:
  lockstep::data::RecordPlace next_;
  lockstep::data::RecordPlace place_;
  bool at_end_ = false;
};

/// How the entries of a tar archive become samples; see lockstep::data::RecordOptions.
struct TarRules {
  int64_t max_bytes = 0;
  int64_t window = 1;
  /// What each sample must have; nothing: not checked.
  std::optional<std::vector<std::string>> fields = std::nullopt;
  /// Whether `fields` are all that a sample may have: then `like` says whose they are.
  bool no_others = false;
  std::string like = {};
};

/// Readers of `input`, whose next byte is the first of the record at `at`. A record of more than `max_bytes` bytes is a
/// bad one.
std::unique_ptr<lockstep::data::RecordReader> make_line_reader(Input input, const lockstep::data::RecordPlace& at,
                                                               int64_t max_bytes);
std::unique_ptr<lockstep::data::RecordReader> make_tf_record_reader(Input input, const lockstep::data::RecordPlace& at,
                                                                    int64_t max_bytes);

/// A reader of tar samples. Unlike the others it is given the input at its first byte, and goes to the record at `at`
/// by itself: what lies before tells which samples were given.
std::unique_ptr<lockstep::data::RecordReader> make_tar_reader(Input input, const lockstep::data::RecordPlace& at,
                                                              const TarRules& rules);

/// The fields of an archive's first samples, all that one of them has; nothing where it has no whole sample. Samples
/// that are wrong do not count. Throws a DataError only for a lack of memory or of file descriptors.
std::optional<std::vector<std::string>> fields_of_first_samples(const std::string& path, TarRules rules);

/// Whether the bytes are the beginning of a TFRecord file: the checksum of its first length holds.
bool is_tf_record(std::string_view first);

}  // namespace lockstep::internal::data
