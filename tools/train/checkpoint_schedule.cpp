#include "tools/train/checkpoint_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace lockstep::tools {

namespace {

constexpr double kShare = 0.01;  // of the time is what saves may cost
constexpr double kUnknown = 60;  // seconds until the next save where the cost of the last one does not become known

}  // namespace

CheckpointSchedule::CheckpointSchedule(const std::string& every, std::function<Clock::time_point()> now)
    : now_(std::move(now)) {
  if (every.empty()) return;
  int64_t number = 0;
  const char* const end = every.data() + every.size();
  const auto [unit, error] = std::from_chars(every.data(), end, number);
  const std::string_view rest(unit, static_cast<std::size_t>(end - unit));
  const int64_t seconds = rest == "s" ? 1 : rest == "m" ? 60 : rest == "h" ? 3600 : 0;
  constexpr int64_t kMost = int64_t{1} << 40;
  if (error != std::errc() || number < 1 || number > kMost || (!rest.empty() && seconds == 0)) {
    throw UsageError("LS-FLAG", fmt::format("--checkpoint-every {} is no number of steps and no time", every),
                     "give steps (100), or a time (90s, 10m, 2h)");
  }
  if (rest.empty()) {
    steps_ = number;
  } else {
    seconds_ = static_cast<double>(number * seconds);
    interval_ = seconds_;
  }
}

int64_t CheckpointSchedule::look(int64_t step, const std::function<double()>& last_save_seconds) {
  if (const double seconds = last_save_seconds(); before_ >= 0 && seconds != before_) {
    interval_ = std::max(1.0, seconds / kShare);
    before_ = -1;
  }
  const Clock::time_point now = now_();
  const double waited = std::chrono::duration<double>(now - last_save_).count();
  if (waited >= interval_) return 0;
  // Half of the way to the next save, by the time of the last steps: to look costs a round of all workers.
  const double per_step = std::chrono::duration<double>(now - last_look_).count() /
                          static_cast<double>(std::max<int64_t>(step - last_step_, 1));
  last_look_ = now;
  last_step_ = step;
  const double steps = (interval_ - waited) / 2 / std::max(per_step, 1e-6);
  return std::clamp<int64_t>(static_cast<int64_t>(std::min(steps, 1e6)), 1, 1000);
}

bool CheckpointSchedule::is_due(Strategy& strategy, int64_t step, const std::function<double()>& last_save_seconds) {
  if (steps_ > 0) return step % steps_ == 0;
  if (step < next_look_) return false;
  const int64_t more = strategy.on_chief([&] { return look(step, last_save_seconds); });
  next_look_ = step + std::max<int64_t>(more, 1);
  return more == 0;
}

void CheckpointSchedule::saved(double seconds) {
  last_save_ = now_();
  if (steps_ > 0 || seconds_ > 0) return;
  // A save that takes longer than the wait would be followed by the next one at once.
  interval_ = std::max(kUnknown, seconds / kShare);
  before_ = seconds;
}

}  // namespace lockstep::tools
