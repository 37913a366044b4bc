#include "lockstep/comm/differences.h"

#include <algorithm>

namespace lockstep::internal::inline comm {

std::pair<std::string, std::string> first_difference(std::string_view a, std::string_view b) {
  while (true) {
    const std::string_view line_a = a.substr(0, a.find('\n'));
    const std::string_view line_b = b.substr(0, b.find('\n'));
    if (line_a != line_b || (line_a.size() == a.size() && line_b.size() == b.size())) {
      return {std::string(line_a), std::string(line_b)};
    }
    a.remove_prefix(std::min(a.size(), line_a.size() + 1));
    b.remove_prefix(std::min(b.size(), line_b.size() + 1));
  }
}

}  // namespace lockstep::internal::comm
