#include "lockstep/comm/call_wait.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::internal {

std::string missing_text(const std::vector<int64_t>& workers, const char* what, uint64_t call) {
  const bool is_one = workers.size() == 1;
  return fmt::format("{} {} {} not {} call {}", is_one ? "worker" : "workers", fmt::join(workers, ", "),
                     is_one ? "has" : "have", what, call);
}

}  // namespace lockstep::internal
