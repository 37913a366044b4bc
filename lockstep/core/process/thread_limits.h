// The limits on the number of threads, for the message about a thread that could not be started.
#pragma once

#include <string>

namespace lockstep::internal::inline core {

/// Each limit that there is, with its value: "RLIMIT_NPROC is 1024, pids.max of the control group is 100, threads-max
/// is 254190". /proc and /sys are looked for below `root`, which is another folder in tests.
std::string thread_limits_text(const std::string& root = "");

}  // namespace lockstep::internal::core
