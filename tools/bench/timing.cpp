#include "tools/bench/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

namespace lockstep::tools {

Timing summarize(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double share) {
    return seconds[static_cast<std::size_t>(std::lround(share * static_cast<double>(seconds.size() - 1)))];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

Timing measure_seconds(const std::function<double(int64_t)>& seconds_of, const TimingOptions& options) {
  const auto block = [&](int64_t calls) {
    if (options.before_block) options.before_block();
    return seconds_of(calls);
  };
  if (options.warm_up_calls > 0) block(options.warm_up_calls);
  int64_t calls = 1;
  for (double took = block(calls); took < options.block_seconds; took = block(calls)) {
    const double wanted = static_cast<double>(calls) * options.block_seconds / std::max(took, 1e-7);
    calls = std::max(calls + 1, std::min(calls * 100, static_cast<int64_t>(std::ceil(wanted * 1.05))));
  }
  std::vector<double> blocks;
  for (int i = 0; i < options.blocks; ++i) blocks.push_back(block(calls) / static_cast<double>(calls));
  return summarize(std::move(blocks));
}

double seconds_for(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Timing measure(const std::function<void(int64_t)>& repeat, const TimingOptions& options) {
  return measure_seconds([&](int64_t calls) { return seconds_for([&] { repeat(calls); }); }, options);
}

nlohmann::ordered_json json_of(const Timing& timing, double scale) {
  return {{"median", timing.median * scale}, {"p10", timing.p10 * scale}, {"p90", timing.p90 * scale}};
}

std::string text_of(const Timing& timing) {
  const bool small = timing.median < 1e-3;
  const double scale = small ? 1e6 : 1e3;
  const int digits = std::max(0, 3 - static_cast<int>(std::floor(std::log10(std::max(timing.median * scale, 1e-9)))));
  return fmt::format("{:.{}f} {} (p10 {:.{}f}, p90 {:.{}f})", timing.median * scale, digits, small ? "us" : "ms",
                     timing.p10 * scale, digits, timing.p90 * scale, digits);
}

std::string size_text(int64_t bytes) {
  constexpr int64_t kKiB = 1024;
  if (bytes >= kKiB * kKiB && bytes % (kKiB * kKiB) == 0) return fmt::format("{} MiB", bytes / kKiB / kKiB);
  if (bytes >= kKiB && bytes % kKiB == 0) return fmt::format("{} KiB", bytes / kKiB);
  return fmt::format("{} B", bytes);
}

}  // namespace lockstep::tools
