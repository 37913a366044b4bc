// Repeats a recorded step: its operators below autograd, without the function, the graph, and the views.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBody.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/capture/step_form.h"

namespace lockstep::internal::inline capture {

/// One replica's, for one StepForm; used on the replica's thread. What it computes has the bits of the recorded
/// function, because the same operators run with the same arguments in the same order, and calls of the library are
/// made again. Between runs it keeps the memory of small results. It does not keep tensors that the function refers to:
/// where the program gives one up for another, nobody may have it any more, and that is noticed.
class Replayer {
 public:
  Replayer(StepForm form, int64_t replica);
  Replayer(const Replayer&) = delete;
  Replayer& operator=(const Replayer&) = delete;

  enum class Readiness {
    kReady,
    kNotNow,   // an earlier run has left a gradient
    kOutdated  // a tensor that the function refers to is gone, or a variable has another shape, or is frozen or
               // released
  };
  Readiness readiness() const;
  /// Repeats the step in a run: `arguments` are shaped as those of the recorded one. Gives what the function returned,
  /// tensors of their own without a graph. Passes on what operators and calls throw; then the step is as one whose
  /// function threw. Throws a DivergenceError (LS-CAPTURE-SHAPE) where an operator's result has another shape than in
  /// the recorded run.
  std::vector<at::Tensor> run(const ReplicaContext& context, std::span<const at::Tensor> arguments);

  const StepForm& form() const { return form_; }

 private:
  class BelowAutograd;

  /// A tensor that has the memory of a source and is not the source's own tensor.
  struct View {
    int32_t tensor = 0;
    int64_t offset = 0;  // in bytes, behind the source's own
    int64_t extent = 0;  // in bytes
  };
  struct SourceState {
    int32_t own = kUndefined;      // the tensor that is just as the source's own
    std::vector<View> views = {};  // the others
    const c10::StorageImpl* bound = nullptr;
    std::size_t bytes = 0;  // of that
    int64_t offset = -1;    // in bytes
  };
  struct NodeState {
    bool is_run = true;
    std::vector<int32_t> sources = {};  // that it makes
    std::vector<int32_t> dropped = {};  // sources whose memory nobody needs after it
    std::vector<int32_t> given = {};    // of a call: sources that nobody but gradients needs during it
  };

  void plan_drops();
  void begin_streams(const ReplicaContext& context) const;
  void bind(int32_t source, const at::Tensor& own);
  void bind_views(SourceState& source, const c10::Storage& storage, int64_t offset);
  /// Those that the function refers to, which are there (readiness()).
  void bind_outer();
  void bind_variables();
  void drop(int32_t source);
  at::Tensor tensor_of(int32_t number) const;
  /// A tensor of its own that shows the same memory.
  at::Tensor shown(int32_t number) const;
  void run_operator(std::size_t place);
  void run_call(std::size_t place, const ReplicaContext& context);
  void keep_books(const BackwardBooks& books, const ReplicaContext& context);
  /// Of the node's results, binds those sources that it makes.
  void take_results(std::size_t place, at::ArrayRef<c10::IValue> results);
  void take_result(std::size_t place, int32_t source, const at::Tensor& result);
  /// Of the run that ends: what the next one has of its own, or the program.
  void forget_run() noexcept;
  std::string name_of(std::size_t place) const;

  const StepForm form_;
  const int64_t replica_;
  const c10::Storage nothing_;       // what a view shows whose memory was dropped
  std::vector<at::Tensor> tensors_;  // by number
  std::vector<SourceState> sources_;
  std::vector<NodeState> nodes_;
  std::vector<int32_t> variable_sources_;
  std::vector<int32_t> outer_sources_;
  std::vector<at::Generator> generators_;  // that operators draw from
  torch::jit::Stack stack_;
};

}  // namespace lockstep::internal::capture
