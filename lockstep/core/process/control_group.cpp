#include "lockstep/core/process/control_group.h"

#include <fmt/format.h>

#include <fstream>

namespace lockstep::internal::inline core {

void for_each_control_group(const std::string& root, std::string_view controller,
                            FunctionRef<void(const std::string& folder, bool unified)> visit) {
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "<number>:<controllers>:<path>"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group.empty() || group.front() != '/') continue;
    if (group == "/") group.clear();
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(fmt::format(",{},", controller)) == std::string::npos) continue;
    const std::string mount = root + "/sys/fs/cgroup" + (unified ? "" : fmt::format("/{}", controller));
    for (;;) {
      visit(mount + group, unified);
      if (group.empty()) break;
      group.erase(group.find_last_of('/'));
    }
  }
}

}  // namespace lockstep::internal::core
