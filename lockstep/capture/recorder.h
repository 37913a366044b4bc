// Records one run of a step: hears its operators below autograd, and is told of the library's calls.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/capture/step_form.h"
#include "lockstep/capture/tensor_numbers.h"
#include "lockstep/intercept/operator_listener.h"
#include "lockstep/replica/step_recorder.h"

namespace lockstep::internal::inline capture {

/// One replica's, on its thread, for one run. It keeps no reference to a tensor of the step beyond a call, except weak
/// ones, because autograd takes over a gradient that nobody else holds and copies it otherwise.
///
/// It finds out what a replay could not repeat: operators that hand values to the host, shapes that depend on values,
/// operators that are not LibTorch's, calls of the library that do not say how they are made again, and memory that the
/// step writes without an operator (data_ptr(), accessor()), by checksums.
class Recorder final : public OperatorListener, public StepRecorder {
 public:
  /// `arguments` are the tensors that the step is given, in order. `known` is an earlier recording, or null.
  Recorder(const ReplicaContext& context, std::span<const at::Tensor> arguments, const StepForm* known);
  ~Recorder() = default;

  /// Once, after the step: `results` are the tensors that it returned.
  void end(std::span<const at::Tensor> results);

  /// This run cannot be recorded, and the next one may be: an earlier one has left a gradient.
  bool is_postponed() const { return is_postponed_; }
  /// Why the step cannot be recorded, as completes "the step ..."; empty where it can.
  const std::string& refusal() const { return refusal_; }
  StepForm& form() { return form_; }

  // What it is told.
  void hear(OperatorCall& call) override;
  void begin_call(std::string what, std::span<const at::Tensor> inputs, CallAgain again) override;
  void end_call(std::span<const at::Tensor> results) override;
  void refuse(const std::string& why) override;

 private:
  /// An argument of the operator under way, held for its call only.
  struct Given {
    int32_t number;
    at::Tensor tensor;
    std::vector<int64_t> sizes;
    bool is_written;
  };

  /// An operator that made a tensor of which nobody has made use yet.
  struct Empty {
    Node node;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // so that no other memory gets its address
  };

  bool may_be_recorded(OperatorCall& call);
  /// Adds the node that has made `tensor`, where that waits for a first use.
  void use_empty(const at::Tensor& tensor);
  std::vector<Given> note_inputs(OperatorCall& call, Node& node);
  void note_outputs(OperatorCall& call, const std::vector<Given>& given, Node& node);
  void note_output(OperatorCall& call, Node& node, int32_t number, const at::Tensor& tensor);
  StepValue value_of(const c10::IValue& value, int64_t node);
  /// Whether somebody has set the state of a generator since the last operator.
  void check_generators();
  void note_generators(const Node& node);
  /// Notes what backwards have left since the last node.
  BackwardBooks take_books();

  const ReplicaContext& context_;
  const int64_t replica_;
  StepForm form_;
  std::string refusal_;
  bool is_postponed_ = false;
  const int64_t unheard_;                                        // num_calls_unheard() at the beginning
  const std::vector<std::shared_ptr<VariableState>> variables_;  // of the strategy
  TensorNumbers numbers_;
  std::map<const c10::StorageImpl*, Empty> empty_;         // of which LibTorch makes some in vain
  std::vector<int32_t> gradients_;                         // by variable: the tensor
  std::vector<std::pair<at::Generator, uint64_t>> drawn_;  // those that were drawn from, and checksums of their states
  ScaledBackwards backwards_;
  bool asked_ = false;
};

}  // namespace lockstep::internal::capture
