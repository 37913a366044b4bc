// Columns of a CSV file as tensors.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "lockstep/cluster/named_text.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/files.h"
#include "lockstep/data/formats/records/csv_reader.h"
#include "lockstep/data/sources/files_digest.h"

namespace lockstep::data {

namespace {

using internal::in_quotes;

constexpr std::size_t kMostColumns = 1 << 20;

std::string_view trimmed(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// The whole text as a number, which may begin with "+"; false where it is none.
template <class T>
bool parse(std::string_view text, T& value) {
  text = trimmed(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Which columns are read, and what they have held so far.
class Columns {
 public:
  Columns(internal::CsvReader& reader, const std::string& path, const CsvOptions& options)
      : reader_(reader), path_(path), options_(options) {}

  /// Chooses the columns by the first row, which is given.
  void choose(const std::vector<std::string>& first) {
    if (options_.header) names_ = first;
    width_ = first.size();
    if (width_ > kMostColumns) reader_.fail(reader_.line(), 1, fmt::format("the row has {} fields", width_));
    targets_ = indices(options_.targets, ".targets");
    if (targets_.empty()) targets_.push_back(width_ - 1);
    inputs_ = indices(options_.inputs, ".inputs");
    for (std::size_t column = 0; options_.inputs.empty() && column < width_; ++column) {
      if (std::find(targets_.begin(), targets_.end(), column) == targets_.end()) inputs_.push_back(column);
    }
    if (!inputs_.empty()) return;
    throw UsageError("LS-OPTION", fmt::format("'{}' has no columns but {} of targets", path_, targets_.size()),
                     "leave a column for the inputs");
  }

  void add(const std::vector<std::string>& row) {
    if (row.size() != width_) {
      reader_.fail(reader_.line(), static_cast<int64_t>(std::min(row.size(), width_)),
                   fmt::format("the row has {}, and the first one has {}",
                               internal::counted(static_cast<int64_t>(row.size()), "field"), width_));
    }
    for (const std::size_t column : inputs_) inputs_values_.push_back(input(row, column));
    for (const std::size_t column : targets_) {
      if (options_.target == CsvTarget::kNumber) {
        target_numbers_.push_back(number(row, column));
        continue;
      }
      int64_t value = 0;
      if (!parse(row[column], value)) wrong(row, column, "is no whole number of 64 bits, which a class must be");
      target_classes_.push_back(value);
    }
    ++rows_;
  }

  Dataset dataset() const {
    const auto inputs = static_cast<int64_t>(inputs_.size());
    const auto targets = static_cast<int64_t>(targets_.size());
    at::Tensor input = at::empty({rows_, inputs}, at::kFloat);
    std::copy(inputs_values_.begin(), inputs_values_.end(), input.data_ptr<float>());
    const bool is_class = options_.target == CsvTarget::kClass;
    at::Tensor target = at::empty({rows_, targets}, is_class ? at::kLong : at::kFloat);
    if (is_class) {
      std::copy(target_classes_.begin(), target_classes_.end(), target.data_ptr<int64_t>());
    } else {
      std::copy(target_numbers_.begin(), target_numbers_.end(), target.data_ptr<float>());
    }
    return internal::tensors_of_files(input, targets == 1 ? target.squeeze(1) : target,
                                      {{path_, internal::digest_of_whole_file(path_)}},
                                      internal::mixed(internal::digest_of(input), internal::digest_of(target)));
  }

 private:
  std::vector<std::size_t> indices(const std::vector<std::string>& names, const char* option) const {
    std::vector<std::size_t> result;
    for (const std::string& name : names) {
      const auto found = std::find(names_.begin(), names_.end(), name);
      std::size_t index = static_cast<std::size_t>(found - names_.begin());
      if (found == names_.end() && (!parse(name, index) || index >= width_)) {
        throw UsageError("LS-OPTION",
                         fmt::format("'{}' has no column {}, which is in {}", path_, in_quotes(name), option),
                         fmt::format("give a column's name, or a number from 0 to {}", width_ - 1));
      }
      result.push_back(index);
    }
    return result;
  }

  [[noreturn]] void wrong(const std::vector<std::string>& row, std::size_t column, const char* what) const {
    const std::string name = column < names_.size() ? fmt::format(" ({})", in_quotes(names_[column])) : std::string();
    reader_.fail(reader_.line(), static_cast<int64_t>(column) + 1,
                 fmt::format("{}{} {}", in_quotes(row[column]), name, what));
  }

  float number(const std::vector<std::string>& row, std::size_t column) const {
    double value = 0;
    if (!parse(row[column], value)) wrong(row, column, "is no number");
    const auto rounded = static_cast<float>(value);
    if (std::isinf(rounded) && !std::isinf(value)) wrong(row, column, "is too large for float32");
    return rounded;
  }

  float input(const std::vector<std::string>& row, std::size_t column) const {
    if (options_.missing && trimmed(row[column]).empty()) return *options_.missing;
    return number(row, column);
  }

  const internal::CsvReader& reader_;
  const std::string& path_;
  const CsvOptions& options_;
  std::vector<std::string> names_;
  std::size_t width_ = 0;
  std::vector<std::size_t> inputs_;
  std::vector<std::size_t> targets_;
  std::vector<float> inputs_values_;
  std::vector<float> target_numbers_;
  std::vector<int64_t> target_classes_;
  int64_t rows_ = 0;
};

}  // namespace

Dataset csv(const std::string& path, const CsvOptions& options) {
  if (options.separator == '"' || options.separator == '\n' || options.separator == '\r') {
    throw UsageError("LS-OPTION", "csv was given a quote or the end of a line as .separator",
                     "give another one, like ';'");
  }
  internal::CsvReader reader(internal::Input(path), options.separator);
  Columns columns(reader, path, options);
  std::vector<std::string> row;
  if (!reader.next(row)) {
    throw DataError("LS-DATA-FILE", fmt::format("'{}' has no rows", path), "give a file with at least one");
  }
  columns.choose(row);
  if (!options.header) columns.add(row);
  while (reader.next(row)) columns.add(row);
  return columns.dataset();
}

}  // namespace lockstep::data
