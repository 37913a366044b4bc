#include "lockstep/train/trace/clock_offset.h"

#include <algorithm>
#include <limits>

namespace lockstep::internal::inline train {

ClockOffset clock_offset(std::span<const CallTimes> mine, std::span<const CallTimes> theirs) {
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = std::numeric_limits<int64_t>::max();
  for (std::size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
    least = std::max(least, mine[i].begin - theirs[i].end);
    most = std::min(most, mine[i].end - theirs[i].begin);
  }
  if (least > most || mine.empty()) return {};  // a clock was set meanwhile: nothing is known
  if (least <= 0 && most >= 0) return {0, 0};
  return {least + (most - least) / 2, (most - least + 1) / 2};
}

}  // namespace lockstep::internal::train
