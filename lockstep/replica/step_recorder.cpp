#include "lockstep/replica/step_recorder.h"

#include <utility>

namespace lockstep::internal::inline replica {

namespace {

thread_local StepRecorder* recorder_of_thread = nullptr;

}  // namespace

StepRecorder* StepRecorder::current() { return recorder_of_thread; }

RecorderScope::RecorderScope(StepRecorder* recorder) : outer_(std::exchange(recorder_of_thread, recorder)) {}

RecorderScope::~RecorderScope() { recorder_of_thread = outer_; }

RecordedCall::RecordedCall(std::string what, std::span<const at::Tensor> inputs, CallAgain again)
    : recorder_(*StepRecorder::current()), what_(what) {
  recorder_.begin_call(std::move(what), inputs, std::move(again));
  unrecorded_.emplace(nullptr);
  deaf_.emplace();
}

RecordedCall::~RecordedCall() {
  if (deaf_) recorder_.refuse("makes the call " + what_ + ", which threw");
}

void RecordedCall::end(std::span<const at::Tensor> results) {
  deaf_.reset();
  unrecorded_.reset();
  recorder_.end_call(results);
}

void refuse_recording(const std::string& why) {
  if (StepRecorder* const recorder = StepRecorder::current()) recorder->refuse(why);
}

}  // namespace lockstep::internal::replica
