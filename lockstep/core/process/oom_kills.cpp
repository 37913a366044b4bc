#include "lockstep/core/process/oom_kills.h"

#include <fmt/format.h>

#include <fstream>
#include <utility>

#include "lockstep/core/process/control_group.h"

namespace lockstep::internal::inline core {

namespace {

/// The number after "oom_kill " in a file of names and numbers.
std::optional<int64_t> count_in(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  for (std::string name; file >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> oom_kills(const std::string& root) {
  std::optional<int64_t> kills;
  for_each_control_group(root, "memory", [&](const std::string& folder, bool unified) {
    if (kills) return;  // groups are visited from the inside out, and the innermost is this process's own
    kills = count_in(folder + (unified ? "/memory.events" : "/memory.oom_control"));
  });
  return kills;
}

std::optional<int64_t> oom_kills_of_machine(const std::string& root) { return count_in(root + "/proc/vmstat"); }

OomWatch::OomWatch(std::string root)
    : root_(std::move(root)), of_group_(oom_kills(root_)), of_machine_(oom_kills_of_machine(root_)) {}

std::string OomWatch::text() const {
  const auto told = [](const std::optional<int64_t>& before, const std::optional<int64_t>& now, const char* where) {
    if (!before || !now || *now <= *before) return std::string();
    return fmt::format("; the kernel's out-of-memory killer has killed {} process{} of this {} since the run began",
                       *now - *before, *now - *before == 1 ? "" : "es", where);
  };
  const std::string of_group = told(of_group_, oom_kills(root_), "control group");
  return of_group.empty() ? told(of_machine_, oom_kills_of_machine(root_), "machine") : of_group;
}

}  // namespace lockstep::internal::core
