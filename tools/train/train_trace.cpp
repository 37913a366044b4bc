#include "tools/train/train_trace.h"

#include <algorithm>
#include <utility>

namespace lockstep::tools {

namespace {

constexpr int64_t kLeftOut = 3;
constexpr int64_t kTraced = 20;

}  // namespace

TrainTrace::TrainTrace(std::string file, Strategy& strategy, int64_t begin, int64_t end)
    : file_(std::move(file)),
      strategy_(strategy),
      first_(std::clamp(end - kTraced, begin, begin + kLeftOut)),
      end_(std::min(end, first_ + kTraced)) {}

void TrainTrace::before_step() {
  if (!file_.empty() && !trace_ && strategy_.step() == first_) trace_.emplace(strategy_, TraceOptions{.file = file_});
}

void TrainTrace::after_step() {
  if (strategy_.step() >= end_) finish();
}

void TrainTrace::finish() {
  if (!trace_) return;
  trace_->write();
  trace_.reset();
}

}  // namespace lockstep::tools
