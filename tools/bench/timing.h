// Measures how long something takes: many blocks of many calls, and their spread.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
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
  std::function<void()> before_block = nullptr;  // not timed
};

/// Of the middle, the fastest tenth and the slowest tenth; `seconds` is not empty.
Timing summarize(std::vector<double> seconds);

/// How long `run` takes.
double seconds_for(const std::function<void()>& run);

/// Times `repeat(n)`, which makes n calls.
Timing measure(const std::function<void(int64_t)>& repeat, const TimingOptions& options = {});

/// The same where `seconds_of(n)` makes n calls and says itself what they took.
Timing measure_seconds(const std::function<double(int64_t)>& seconds_of, const TimingOptions& options = {});

/// Median, p10 and p90, times `scale`.
nlohmann::ordered_json json_of(const Timing& timing, double scale);
/// "1.234 ms (p10 1.2, p90 1.3)", in the unit that fits.
std::string text_of(const Timing& timing);
/// "4 KiB", "64 MiB".
std::string size_text(int64_t bytes);

}  // namespace lockstep::tools
