// A number of things in words, for messages: "1 sample", "12 samples".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::internal::inline core {

/// `thing` is one of them; its plural takes an s.
inline std::string counted(int64_t count, std::string_view thing) {
  return std::to_string(count) + " " + std::string(thing) + (count == 1 ? "" : "s");
}

}  // namespace lockstep::internal::core
