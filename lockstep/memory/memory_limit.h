// How much memory this process may use: the machine's, or less where its control group has a limit.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::internal {

/// In bytes. `root` is where /proc and /sys are looked for: another folder in tests.
std::size_t memory_limit(const std::string& root = "");

}  // namespace lockstep::internal
