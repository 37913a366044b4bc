#include "tools/number_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <system_error>

namespace lockstep::tools {

namespace {

/// The number that is all of `text`.
template <class Number>
std::optional<Number> number_in(const std::string& text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace

CLI::Validator whole_number(uint64_t lowest, uint64_t highest) {
  const auto check = [lowest, highest](std::string& text) -> std::string {
    const std::optional<uint64_t> number = number_in<uint64_t>(text);
    if (!number || *number < lowest || *number > highest) {
      return fmt::format("{} is not a whole number from {} to {}", text, lowest, highest);
    }
    text = std::to_string(*number);
    return {};
  };
  const bool has_limit = highest < static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return {check, has_limit ? fmt::format("from {} to {}", lowest, highest) : fmt::format("from {}", lowest)};
}

CLI::Validator number_between(double lowest, double highest) {
  const auto check = [lowest, highest](const std::string& text) -> std::string {
    const std::optional<double> number = number_in<double>(text);
    if (number && *number >= lowest && *number <= highest) return {};
    return fmt::format("{} is not a number from {} to {}", text, lowest, highest);
  };
  return {check, fmt::format("from {} to {}", lowest, highest)};
}

CLI::Validator positive_number() {
  const auto check = [](const std::string& text) -> std::string {
    const std::optional<double> number = number_in<double>(text);
    if (number && std::isfinite(*number) && *number > 0) return {};
    return fmt::format("{} is not a finite number above 0", text);
  };
  return {check, "above 0"};
}

}  // namespace lockstep::tools
