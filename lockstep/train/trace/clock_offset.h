// How far the clocks of two processes are apart, from calls in which both took part.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::internal::inline train {

/// When a process began a call in which all processes take part, and when it had everyone's part; nanoseconds of its
/// own clock.
struct CallTimes {
  int64_t begin = 0;
  int64_t end = 0;
};

/// What is to be taken from a process's times to have another one's.
struct ClockOffset {
  int64_t nanoseconds = 0;
  int64_t uncertainty = 0;  // it may be so much more or less
};

/// The offset of `mine` to `theirs`, of the same calls. Each process had the other's part only after the other had
/// begun the call: so each call bounds the offset on both sides, and all calls leave an interval. 0 where that is
/// possible: then it is one clock, as processes of a host have it.
ClockOffset clock_offset(std::span<const CallTimes> mine, std::span<const CallTimes> theirs);

}  // namespace lockstep::internal::train
