#include "tools/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace lockstep::tools {

namespace {

double seconds_of(const std::function<void(int64_t)>& repeat, int64_t calls) {
  const auto start = std::chrono::steady_clock::now();
  repeat(calls);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Timing summarize(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double share) {
    return seconds[static_cast<std::size_t>(std::lround(share * static_cast<double>(seconds.size() - 1)))];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

Timing measure(const std::function<void(int64_t)>& repeat, const TimingOptions& options) {
  repeat(options.warm_up_calls);
  int64_t calls = 1;
  for (double took = seconds_of(repeat, calls); took < options.block_seconds; took = seconds_of(repeat, calls)) {
    const double wanted = static_cast<double>(calls) * options.block_seconds / std::max(took, 1e-7);
    calls = std::max(calls + 1, std::min(calls * 100, static_cast<int64_t>(std::ceil(wanted * 1.05))));
  }
  std::vector<double> blocks;
  for (int i = 0; i < options.blocks; ++i) blocks.push_back(seconds_of(repeat, calls) / static_cast<double>(calls));
  return summarize(std::move(blocks));
}

}  // namespace lockstep::tools
