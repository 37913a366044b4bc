// Rows of a CSV file, by RFC 4180.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/formats/input.h"

namespace lockstep::internal::inline data {

/// Reads rows. A field may be in quotes, and then hold separators, ends of lines, and quotes, each written twice. A
/// line ends with "\n" or "\r\n", the last one may have no end; empty lines and a byte order mark at the beginning are
/// passed over. One thread at a time.
class CsvReader {
 public:
  CsvReader(Input input, char separator);
  /// The next row; false at the end. Throws a DataError that names line and column where quotes are wrong, and where a
  /// row has more than 16 MiB.
  bool next(std::vector<std::string>& fields);
  /// The line in which the row that next() gave last begins, from 1.
  int64_t line() const { return row_line_; }
  /// Throws the DataError of a wrong field: `column` counts from 1.
  [[noreturn]] void fail(int64_t line, int64_t column, const std::string& what) const;

 private:
  int peek();  // the next byte; -1 at the end
  void take(std::string& field);
  void check(int c, const std::string& field, int64_t column) const;
  void read_row(std::vector<std::string>& fields);
  void read_field(std::string& field, int64_t column);
  void read_quoted(std::string& field, int64_t column);

  Input input_;
  const char separator_;
  std::string_view there_;
  std::size_t at_ = 0;
  std::size_t row_bytes_ = 0;
  int64_t line_ = 1;
  int64_t row_line_ = 0;
};

}  // namespace lockstep::internal::data
