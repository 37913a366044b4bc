#include "lockstep/cluster/named_text.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline cluster {

std::string in_quotes(std::string_view text, std::size_t longest) {
  std::string result = "'";
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte > 0x7e ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return result + (text.size() > longest ? "...'" : "'");
}

void throw_malformed(const NamedText& value, std::size_t offset, const std::string& expected) {
  constexpr std::size_t kShown = 12;  // bytes of the place that is wrong
  const std::string place = offset < value.text.size()
                                ? fmt::format("at offset {} stands {}", offset,
                                              in_quotes(std::string_view(value.text).substr(offset), kShown))
                                : fmt::format("it ends at offset {}", value.text.size());
  throw ClusterError(
      "LS-CLUSTER-VALUE",
      fmt::format("{} is {}: {}, and {} is expected", value.name, in_quotes(value.text), place, expected),
      fmt::format("correct {}, or unset it", value.name));
}

int64_t whole_number(const NamedText& value, int64_t least, int64_t most) {
  const std::string expected = fmt::format("a whole number from {} to {}", least, most);
  int64_t number = 0;
  for (std::size_t at = 0; at < value.text.size(); ++at) {
    const char c = value.text[at];
    if (c < '0' || c > '9') throw_malformed(value, at, expected);
    const int64_t digit = c - '0';
    if (number > most / 10 || 10 * number > most - digit) throw_malformed(value, 0, expected);
    number = 10 * number + digit;
  }
  if (value.text.empty() || number < least) throw_malformed(value, 0, expected);
  return number;
}

}  // namespace lockstep::internal::cluster
