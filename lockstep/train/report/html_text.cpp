#include "lockstep/train/report/html_text.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace lockstep::internal::inline train {

std::string escaped(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&': html += "&amp;"; break;
      case '<': html += "&lt;"; break;
      case '>': html += "&gt;"; break;
      case '"': html += "&quot;"; break;
      case '\'': html += "&#39;"; break;
      default: html += c;
    }
  }
  return html;
}

std::string script_safe(std::string json) {
  for (std::size_t at = json.find('<'); at != std::string::npos; at = json.find('<', at)) {
    json.replace(at, 1, "\\u003c");
  }
  return json;
}

std::string whole_number(int64_t value) {
  std::string digits = std::to_string(value < 0 ? -value : value);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return (value < 0 ? "-" : "") + digits;
}

std::string short_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "infinity" : "-infinity";
  const double size = std::abs(value);
  if (size >= 1000 && size < 1e9) return whole_number(std::llround(value));
  if (size == std::floor(size) && size < 1e9) return fmt::format("{:.0f}", value);
  if (size < 1e-3 || size >= 1e9) return fmt::format("{:.3e}", value);
  const int digits = 3 - static_cast<int>(std::floor(std::log10(size)));
  return fmt::format("{:.{}f}", value, digits);
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0 && seconds < 1e12)) return short_number(seconds) + " s";
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1000);
  if (seconds < 100) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string size_text(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
  auto size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1000 && unit + 1 < kUnits.size(); ++unit) size /= 1000;
  return fmt::format("{:.{}f} {}", size, unit == 0 ? 0 : 1, kUnits.at(unit));
}

std::string percent_text(double part, double whole) {
  return fmt::format("{:.0f} %", whole > 0 ? 100 * part / whole : 0);
}

std::string table_html(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows,
                       std::size_t numbers_from) {
  const auto kind = [&](std::size_t column) { return column >= numbers_from ? " class=\"number\"" : ""; };
  std::string html = "<div class=\"wide\"><table><thead><tr>";
  for (std::size_t i = 0; i < head.size(); ++i) {
    html += fmt::format("<th scope=\"col\"{}>{}</th>", kind(i), escaped(head[i]));
  }
  html += "</tr></thead><tbody>";
  for (const auto& row : rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) html += fmt::format("<td{}>{}</td>", kind(i), row[i]);
    html += "</tr>";
  }
  return html + "</tbody></table></div>";
}

}  // namespace lockstep::internal::train
