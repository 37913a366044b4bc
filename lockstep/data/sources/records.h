// Records in sequence: what files of records give, and where each of them lies.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::data {

/// Where a record lies, for messages and for cursors.
struct RecordPlace {
  int64_t file = 0;    // index into RecordFiles::files()
  int64_t record = 0;  // in the file, from 0
  int64_t offset = 0;  // bytes from the start of the file, where the record begins
};

/// Reads the records of one file in order. One thread at a time.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  /// The next record's bytes; false at the end of the file. A DataError names file, record and offset; the reader has
  /// then moved behind the bad record where the format lets it, and next() may be called again.
  virtual bool next(std::string& bytes) = 0;
  /// The place of the record that next() gave last.
  virtual RecordPlace place() const = 0;
};

/// Files of records of one format.
class RecordFiles {
 public:
  virtual ~RecordFiles() = default;
  virtual const std::vector<std::string>& files() const = 0;
  /// Opens file `file` at a place that an earlier reader of it gave (record and offset), or at its beginning (record 0,
  /// offset 0). Throws a UsageError for a place that cannot be one, and a DataError for a file that cannot be read. Any
  /// thread may call it.
  virtual std::unique_ptr<RecordReader> open(int64_t file, const RecordPlace& at) const = 0;
  virtual std::string describe() const = 0;
};

}  // namespace lockstep::data
