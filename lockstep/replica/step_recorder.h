// What the recorder of a step is told of the library's own calls: those that are more than operators.
//
// A recorder hears the operators of a step by intercept/. An optimizer's step, a reduction over the replicas, or the
// assignment of a variable is more: it meets other replicas and keeps books. Such a call is recorded as one, with its
// tensors and a function that makes it again. A call that does not say how it is made again cannot be recorded, and a
// step that makes it is not.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/intercept/scopes.h"

namespace lockstep {
class ReplicaContext;
}

namespace lockstep::internal::inline replica {

/// Makes a recorded call again in a later run, where `inputs` are its tensors. Gives the tensors that it returns.
using CallAgain = std::function<std::vector<at::Tensor>(const ReplicaContext&, std::span<const at::Tensor> inputs)>;

/// Records one run of one replica's step, on the replica's thread.
class StepRecorder {
 public:
  /// That of the calling thread; null where nothing is recorded, and inside of a recorded call.
  static StepRecorder* current();

  /// `what` names the call with all its options that are no tensors. A recording in which they differ is another one.
  virtual void begin_call(std::string what, std::span<const at::Tensor> inputs, CallAgain again) = 0;
  virtual void end_call(std::span<const at::Tensor> results) = 0;
  /// The step cannot be recorded; `why` completes "the step ...".
  virtual void refuse(const std::string& why) = 0;

 protected:
  ~StepRecorder() = default;
};

/// While it lives, `recorder` is the calling thread's; null: none is.
class RecorderScope {
 public:
  explicit RecorderScope(StepRecorder* recorder);
  ~RecorderScope();
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;

 private:
  StepRecorder* const outer_;
};

/// A call of the library in a step that is recorded: while it lives, operators are part of the call. Make one only
/// where StepRecorder::current() is not null.
class RecordedCall {
 public:
  RecordedCall(std::string what, std::span<const at::Tensor> inputs, CallAgain again);
  /// A call that has not ended has thrown: the step cannot be recorded.
  ~RecordedCall();
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;

  void end(std::span<const at::Tensor> results = {});

 private:
  StepRecorder& recorder_;
  const std::string what_;
  std::optional<RecorderScope> unrecorded_;
  std::optional<DeafScope> deaf_;
};

/// Says that the calling thread's step cannot be recorded, where it is; `why` completes "the step ...".
void refuse_recording(const std::string& why);

}  // namespace lockstep::internal::replica
