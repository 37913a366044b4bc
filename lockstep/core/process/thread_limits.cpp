#include "lockstep/core/process/thread_limits.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <vector>

#include "lockstep/core/process/control_group.h"

namespace lockstep::internal::inline core {

namespace {

/// The number that a file begins with; nothing where there is no such file, or where it says "max".
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

}  // namespace

std::string thread_limits_text(const std::string& root) {
  std::vector<std::string> limits;
  rlimit processes{};
  if (getrlimit(RLIMIT_NPROC, &processes) == 0 && processes.rlim_cur != RLIM_INFINITY) {
    limits.push_back(fmt::format("RLIMIT_NPROC is {}", processes.rlim_cur));
  }
  std::optional<uint64_t> smallest;
  for_each_control_group(root, "pids", [&](const std::string& folder, bool) {
    const auto limit = number_in(folder + "/pids.max");
    if (limit) smallest = std::min(smallest.value_or(*limit), *limit);
  });
  if (smallest) limits.push_back(fmt::format("pids.max of the control group is {}", *smallest));
  if (const auto all = number_in(root + "/proc/sys/kernel/threads-max")) {
    limits.push_back(fmt::format("threads-max is {}", *all));
  }
  return limits.empty() ? "no limit is known" : fmt::format("{}", fmt::join(limits, ", "));
}

}  // namespace lockstep::internal::core
