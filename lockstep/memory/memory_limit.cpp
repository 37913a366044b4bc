#include "lockstep/memory/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

#include "lockstep/core/process/control_group.h"

namespace lockstep::internal::inline memory {

namespace {

/// The number in a control group's file. A file without one ("max") and a missing file mean no limit.
std::size_t limit_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t bytes = 0;
  return file >> bytes ? static_cast<std::size_t>(bytes) : SIZE_MAX;
}

}  // namespace

std::size_t memory_limit(const std::string& root) {
  std::size_t limit =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for_each_control_group(root, "memory", [&](const std::string& folder, bool unified) {
    limit = std::min(limit, limit_in(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes")));
  });
  return limit;
}

}  // namespace lockstep::internal::memory
