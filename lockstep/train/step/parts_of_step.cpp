#include "lockstep/train/step/parts_of_step.h"

#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline train {

namespace {

constexpr std::size_t kMostSlices = 4096;  // more than a step of many lanes and replicas has

/// Whether a stage of a meeting talks to other workers: by its name, as a trace shows it.
bool talks(std::string_view stage) {
  for (const std::string_view part : {"send", "workers", "others", "meet with", "vote", "agree"}) {
    if (stage.find(part) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

void PartsOfStep::begin() {
  if (is_traced()) return;
  try {
    recording_.emplace(kMostSlices);
  } catch (const UsageError&) {  // another worker, a thread of this process, was faster
  }
}

void PartsOfStep::end() {
  if (!recording_) return;
  FitStatus::Parts found;
  const auto slices = recording_->stop();
  if (recording_->left_out() > 0) return;
  for (const TraceSlice& slice : slices) {
    const double seconds = static_cast<double>(slice.end - slice.begin) * 1e-9;
    switch (slice.kind) {
      case TraceKind::kStep: found.seconds += seconds * lanes_; break;
      case TraceKind::kCompute: found.compute += seconds; break;
      case TraceKind::kWait: found.waiting += seconds; break;
      case TraceKind::kMeeting: (talks(slice.name) ? found.communication : found.update) += seconds; break;
      case TraceKind::kInput: break;  // read ahead, on a thread of its own
    }
  }
  sums_.seconds += found.seconds;
  sums_.compute += found.compute;
  sums_.update += found.update;
  sums_.communication += found.communication;
  sums_.waiting += found.waiting;
}

}  // namespace lockstep::internal::train
