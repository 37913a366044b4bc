// How long something takes, honestly: many blocks of many calls, and their spread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep::tools {

/// Seconds of one call.
struct Timing {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
};

struct TimingOptions {
  int blocks = 15;
  double block_seconds = 0.3;  // at least, and at least one call
  int warm_up_calls = 10;
};

/// Of the middle, the fastest tenth and the slowest tenth; `seconds` is not empty.
Timing summarize(std::vector<double> seconds);

/// Times `repeat(n)`, which makes n calls.
Timing measure(const std::function<void(int64_t)>& repeat, const TimingOptions& options = {});

}  // namespace lockstep::tools
