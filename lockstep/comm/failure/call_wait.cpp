#include "lockstep/comm/failure/call_wait.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/comm/failure/call_note.h"
#include "lockstep/comm/failure/seen_phases.h"

namespace lockstep::internal::inline comm {

std::string missing_text(const std::vector<int64_t>& workers, const char* what, uint64_t call,
                         const SeenPhases& phases) {
  constexpr std::size_t kMostPhases = 8;
  const bool is_one = workers.size() == 1;
  std::string text = fmt::format("{} {} {} not {} call {}", is_one ? "worker" : "workers", fmt::join(workers, ", "),
                                 is_one ? "has" : "have", what, call);
  for (std::size_t i = 0; i < std::min(workers.size(), kMostPhases); ++i) {
    text += fmt::format("; worker {} is {}", workers[i], phases.describe(workers[i]));
  }
  const std::string note = CallNote::of_this_thread();
  return note.empty() ? text : fmt::format("{}; it is waited for in {}", text, note);
}

}  // namespace lockstep::internal::comm
