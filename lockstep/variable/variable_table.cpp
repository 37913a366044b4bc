#include "lockstep/variable/variable_table.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline variable {

namespace {

std::string text_of_bytes(int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

/// How many parts a name has between its dots.
std::size_t depth_of(const std::string& name) {
  return static_cast<std::size_t>(std::count(name.begin(), name.end(), '.')) + 1;
}

/// The first `depth` parts of a name and ".*", or the whole of it where it has no more.
std::string beginning_of(const std::string& name, std::size_t depth) {
  std::size_t end = 0;
  for (std::size_t part = 0; part < depth; ++part) {
    end = name.find('.', part == 0 ? 0 : end + 1);
    if (end == std::string::npos) return name;
  }
  return name.substr(0, end) + ".*";
}

void add_to(VariableRow& row, const VariableRow& other) {
  row.bytes += other.bytes;
  row.count += other.count;
  row.sent = row.sent < 0 || other.sent < 0 ? -1 : row.sent + other.sent;
  row.shape = fmt::format("{} variables", row.count);
}

/// Joins the rows of one kind, place and number of copies that have the same beginning.
std::vector<VariableRow> together(const std::vector<VariableRow>& rows, std::size_t depth) {
  std::vector<VariableRow> result;
  std::map<std::string, std::size_t> known;  // index in result
  for (const VariableRow& row : rows) {
    const std::string beginning = beginning_of(row.name, depth);
    const auto [at, fresh] = known.try_emplace(
        fmt::format("{}\n{}\n{}\n{}\n{}\n{}", beginning, row.kind, row.copies, row.where, row.gradient, row.update),
        result.size());
    if (fresh) {
      result.push_back(row);
    } else {
      add_to(result[at->second], row);
      result[at->second].name = beginning;
    }
  }
  return result;
}

}  // namespace

VariableRow row_of(const VariableState& variable) {
  const at::Tensor& like = variable.like();
  return {.name = variable.name(),
          .kind = variable.is_slot() ? "slot" : kind_of(variable),
          .shape = fmt::format("{} [{}]", c10::toString(like.scalar_type()), fmt::join(like.sizes(), ", ")),
          .bytes = variable.bytes(),
          .copies = variable.on_write() ? static_cast<int64_t>(variable.copies().size()) : variable.num_components(),
          .where = variable.where(),
          .gradient = text_of(variable.gradient_form())};
}

std::vector<VariableRow> shortened(const std::vector<VariableRow>& rows, std::size_t max_rows) {
  std::size_t depth = 1;
  for (const VariableRow& row : rows) depth = std::max(depth, depth_of(row.name));
  std::vector<VariableRow> result = rows;
  while (result.size() > max_rows && depth > 1) result = together(rows, --depth);
  if (result.size() <= max_rows) return result;
  VariableRow rest{.name = "...", .sent = 0, .count = 0};
  while (result.size() >= max_rows && !result.empty()) {
    add_to(rest, result.back());
    result.pop_back();
  }
  rest.copies = 0;  // the numbers may differ
  if (rest.sent == 0) rest.sent = -1;
  result.push_back(rest);
  return result;
}

std::string table_of(const std::vector<VariableRow>& rows) {
  std::vector<std::array<std::string, 9>> cells{{"variable", "kind", "shape", "bytes", "copies", "where", "", "", ""}};
  int64_t count = 0;
  int64_t bytes = 0;
  for (const VariableRow& row : rows) {
    cells.push_back({row.name, row.kind, row.shape, text_of_bytes(row.bytes),
                     row.copies > 0 ? std::to_string(row.copies) : "", row.where, row.gradient, row.update,
                     row.sent >= 0 ? text_of_bytes(row.sent) : ""});
    count += row.count;
    bytes += row.bytes;
    if (!row.gradient.empty()) cells.front()[6] = "gradient";
    if (!row.update.empty()) cells.front()[7] = "update";
    if (row.sent >= 0) cells.front()[8] = "sent";
  }
  std::array<std::size_t, 9> widths{};
  for (const auto& line : cells) {
    for (std::size_t column = 0; column < line.size(); ++column) {
      widths[column] = std::max(widths[column], line[column].size());
    }
  }
  std::string text;
  for (const auto& line : cells) {
    std::string row =
        fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>{}}  {:>{}}  {:<{}}  {:<{}}", line[0], widths[0], line[1], widths[1],
                    line[2], widths[2], line[3], widths[3], line[4], widths[4], line[5], widths[5], line[6], widths[6]);
    if (!cells.front()[7].empty()) row += fmt::format("  {:<{}}  {:>{}}", line[7], widths[7], line[8], widths[8]);
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + '\n';
  }
  return text +
         fmt::format("{} variable{}, {} in one copy of each\n", count, count == 1 ? "" : "s", text_of_bytes(bytes));
}

}  // namespace lockstep::internal::variable
