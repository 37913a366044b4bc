#include "lockstep/memory/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

namespace lockstep::internal {

namespace {

/// The number in a control group's file; what has none ("max", or no such file) is no limit.
std::size_t limit_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t bytes = 0;
  return file >> bytes ? static_cast<std::size_t>(bytes) : SIZE_MAX;
}

/// The smallest limit of a control group and those around it. Inside a container the path may be the host's, of which
/// only the end of the walk, the mount itself, exists.
std::size_t limit_on_path(const std::string& mount, std::string group, const char* file) {
  std::size_t limit = SIZE_MAX;
  for (;;) {
    limit = std::min(limit, limit_in(mount + group + "/" + file));
    if (group.empty()) return limit;
    group.erase(group.find_last_of('/'));
  }
}

}  // namespace

std::size_t memory_limit(const std::string& root) {
  std::size_t limit =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "<number>:<controllers>:<path>"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group.empty() || group.front() != '/') continue;
    if (group == "/") group.clear();
    if (controllers == ",,") {
      limit = std::min(limit, limit_on_path(root + "/sys/fs/cgroup", group, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      limit = std::min(limit, limit_on_path(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return limit;
}

}  // namespace lockstep::internal
