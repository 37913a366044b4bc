// Decides for each call of a captured step whether it runs as it is, is recorded, or is replayed, and keeps the
// recordings.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/capture/capture_key.h"
#include "lockstep/core/function_ref.h"

namespace torch::nn {
class Module;
}

namespace lockstep {
class ReplicaContext;
}

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica
namespace lockstep::internal::inline variable {
class ModuleBinding;
}  // namespace lockstep::internal::variable

namespace lockstep::internal::inline capture {

struct ReplicaRecording;

/// What stands behind a CapturedStep. Each replica has recordings of its own, which its thread alone uses.
class StepCapture {
 public:
  explicit StepCapture(std::shared_ptr<ReplicaGroup> group);
  ~StepCapture();
  StepCapture(const StepCapture&) = delete;
  StepCapture& operator=(const StepCapture&) = delete;

  /// See CapturedStep. While no run is under way.
  std::string describe() const;
  int64_t num_replayed() const;

 private:
  friend class CapturedCall;
  struct OfReplica {
    std::vector<std::shared_ptr<ReplicaRecording>> recordings = {};
    // The replica's modules with all that is in them, whose modes a recording holds for.
    std::vector<std::weak_ptr<ModuleBinding>> bindings = {};
    std::vector<std::shared_ptr<torch::nn::Module>> modules = {};
  };

  /// That of these arguments, which may be new.
  ReplicaRecording& recording_of(const ReplicaContext& context, CaptureKey key);
  void add_modes(CaptureKey& key, int64_t r);
  /// The step runs as it is from now on, for good; `why` completes "the step ...".
  void give_up(ReplicaRecording& recording, const std::string& why, const char* since = "") const;

  const std::shared_ptr<ReplicaGroup> group_;
  std::vector<OfReplica> replicas_;
};

/// One call of a captured step, on its replica's thread.
class CapturedCall {
 public:
  CapturedCall(StepCapture& capture, const ReplicaContext& context, CaptureKey key);
  ~CapturedCall();
  CapturedCall(const CapturedCall&) = delete;
  CapturedCall& operator=(const CapturedCall&) = delete;

  enum class Way { kAsItIs, kRecord, kReplay };
  Way way() const { return way_; }
  /// It runs as it is, now and from now on; `why` completes "the step ...".
  void refuse(const std::string& why);

  /// The tensors of what the function returned in the recorded run, computed again.
  std::vector<at::Tensor> replay();
  /// What replay() has no tensors of: a copy of what the function returned, made by keep(). Its type is the caller's.
  const void* kept() const;

  /// Runs the function, `fn`, and records it. `results` is then called for what it returned, and `keep` makes a copy of
  /// that without its tensors.
  void record(FunctionRef<void()> fn, FunctionRef<CaptureKey()> results, FunctionRef<std::shared_ptr<void>()> keep);

 private:
  StepCapture& capture_;
  const ReplicaContext& context_;
  const std::vector<at::Tensor> arguments_;
  ReplicaRecording& recording_;
  Way way_ = Way::kAsItIs;
};

}  // namespace lockstep::internal::capture
