// How much memory this process may use: the machine's, or less where its control group has a limit.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::internal::inline memory {

/// The limit in bytes. /proc and /sys are looked for below `root`, which is another folder in tests.
std::size_t memory_limit(const std::string& root = "");

}  // namespace lockstep::internal::memory
