#include "tools/run/oom_kills.h"

#include <fstream>

#include "lockstep/core/control_group.h"

namespace lockstep::tools {

std::optional<int64_t> oom_kills(const std::string& root) {
  std::optional<int64_t> kills;
  internal::for_each_control_group(root, "memory", [&](const std::string& folder, bool unified) {
    if (kills) return;  // groups are visited from the inside out, and the innermost is this process's own
    std::ifstream file(folder + (unified ? "/memory.events" : "/memory.oom_control"));
    int64_t value = 0;
    for (std::string name; file >> name >> value;) {
      if (name == "oom_kill") kills = value;
    }
  });
  return kills;
}

}  // namespace lockstep::tools
