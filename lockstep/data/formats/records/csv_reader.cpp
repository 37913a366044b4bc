#include "lockstep/data/formats/records/csv_reader.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline data {

namespace {

constexpr std::size_t kLongestRow = 16 << 20;
constexpr const char* kUtf16 = "the text is UTF-16 or binary; UTF-8 is read";

}  // namespace

CsvReader::CsvReader(Input input, char separator) : input_(std::move(input)), separator_(separator) {
  const std::string_view start = input_.peek();
  if (start.starts_with("\xff\xfe") || start.starts_with("\xfe\xff")) fail(1, 1, kUtf16);
  if (start.starts_with("\xef\xbb\xbf")) input_.skip(3);
}

void CsvReader::fail(int64_t line, int64_t column, const std::string& what) const {
  throw DataError("LS-DATA-FILE", fmt::format("'{}', line {}, column {}: {}", input_.name(), line, column, what),
                  "correct the file");
}

int CsvReader::peek() {
  if (at_ == there_.size()) {
    input_.skip(there_.size());
    there_ = input_.peek();
    at_ = 0;
    if (there_.empty()) return -1;
  }
  return static_cast<unsigned char>(there_[at_]);
}

void CsvReader::take(std::string& field) {
  field += there_[at_++];
  ++row_bytes_;
}

bool CsvReader::next(std::vector<std::string>& fields) {
  do {
    if (peek() < 0) return false;
    row_line_ = line_;
    read_row(fields);
  } while (fields.empty());
  return true;
}

/// Leaves `fields` empty where the line is.
void CsvReader::read_row(std::vector<std::string>& fields) {
  fields.clear();
  row_bytes_ = 0;
  bool goes_on = true;
  while (goes_on) {
    const auto column = static_cast<int64_t>(fields.size()) + 1;
    std::string field;
    const bool is_quoted = peek() == '"';
    if (is_quoted) {
      read_quoted(field, column);
    } else {
      read_field(field, column);
    }
    goes_on = peek() == static_cast<unsigned char>(separator_);
    // The "\r" of "\r\n"; behind quotes read_quoted() has taken it.
    if (!goes_on && !is_quoted && field.ends_with('\r')) field.pop_back();
    const bool is_empty_line = !goes_on && !is_quoted && fields.empty() && field.empty();
    if (!is_empty_line) fields.push_back(std::move(field));
    row_bytes_ += sizeof(std::string);
    if (row_bytes_ > kLongestRow) fail(row_line_, column, fmt::format("the row has more than {} bytes", kLongestRow));
    if (goes_on) ++at_;
  }
  if (peek() != '\n') return;
  ++at_;
  ++line_;
}

/// A file with other ends of lines, or another encoding, would be one long row of names, and no samples.
void CsvReader::check(int c, const std::string& field, int64_t column) const {
  if (c == 0) fail(line_, column, kUtf16);
  if (c != '\n' && field.ends_with('\r')) {
    fail(line_, column, "\"\\r\" stands without \"\\n\", and a line ends with \"\\n\" or \"\\r\\n\"");
  }
}

void CsvReader::read_field(std::string& field, int64_t column) {
  for (int c = peek(); c >= 0 && c != '\n' && c != static_cast<unsigned char>(separator_); c = peek()) {
    check(c, field, column);
    if (c == '"') fail(line_, column, "a quote stands within a field that does not begin with one");
    if (row_bytes_ > kLongestRow) fail(row_line_, column, fmt::format("the row has more than {} bytes", kLongestRow));
    take(field);
  }
  if (peek() == static_cast<unsigned char>(separator_)) check(peek(), field, column);
}

void CsvReader::read_quoted(std::string& field, int64_t column) {
  const int64_t begin = line_;
  ++at_;
  while (true) {
    const int c = peek();
    if (c < 0) fail(begin, column, "a quote begins here and does not end");
    if (row_bytes_ > kLongestRow) fail(begin, column, fmt::format("the row has more than {} bytes", kLongestRow));
    if (c == '\n') ++line_;
    if (c == 0) fail(line_, column, kUtf16);
    if (c != '"') {
      take(field);
      continue;
    }
    ++at_;
    if (peek() != '"') break;
    take(field);
  }
  if (peek() == '\r') {
    ++at_;
    if (peek() >= 0 && peek() != '\n') fail(line_, column, "text stands behind the closing quote");
    return;
  }
  const int c = peek();
  if (c >= 0 && c != '\n' && c != static_cast<unsigned char>(separator_)) {
    fail(line_, column, "text stands behind the closing quote");
  }
}

}  // namespace lockstep::internal::data
