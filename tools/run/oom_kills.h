// How often the kernel's out-of-memory killer was at work here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::tools {

/// How many processes of this process's memory control group the out-of-memory killer has killed so far; nothing where
/// the system does not say. /proc and /sys are looked for below `root`, which is another folder in tests.
std::optional<int64_t> oom_kills(const std::string& root = "");

}  // namespace lockstep::tools
