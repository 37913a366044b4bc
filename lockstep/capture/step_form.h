// What a recorded step is: its tensors, where each has its memory from, and what was done with them in order.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/replica/loss/loss_weight.h"
#include "lockstep/replica/step_recorder.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline capture {

/// Where the memory of recorded tensors comes from.
struct Source {
  enum class Kind : uint8_t {
    kArgument,  // a tensor that the step is given
    kVariable,  // a replica's component of a variable
    kOuter,     // a tensor that was there before the step, and that its function refers to
    kScalar,    // a number of the function's own
    kResult,    // made by an operator or a call of the step
    kFactors    // such a result that has no memory (linear/factored_tensor.h)
  };
  Kind kind = Kind::kResult;
  int64_t index = 0;   // of the argument, in the list of its kind in StepForm, or of the node that makes it
  int64_t output = 0;  // of that node: which of its tensors
  const c10::StorageImpl* storage = nullptr;  // of an outer tensor
  bool operator==(const Source&) const = default;
};

/// One way in which a step sees memory: a tensor, or a view of one.
struct StepTensor {
  int32_t source = 0;  // in StepForm::sources
  int64_t offset = 0;  // in bytes, behind that of the source's own tensor
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool is_number = false;  // wrapped: it does not decide about the dtype of a result
  bool operator==(const StepTensor&) const = default;
  int64_t bytes() const;
  /// From its first byte to behind its last one.
  int64_t extent() const;
};

constexpr int32_t kUndefined = -1;  // in place of a tensor

/// An argument or result of an operator.
struct StepValue {
  enum class Kind : uint8_t { kConstant, kTensor, kTensors, kOptionalTensors };
  Kind kind = Kind::kConstant;
  c10::IValue constant = {};
  std::vector<int32_t> tensors = {};  // in StepForm::tensors, or kUndefined
};

/// From here on the gradient of a variable is this tensor, or undefined.
struct GradientChange {
  int32_t variable = 0;  // in StepForm::variables
  int32_t tensor = kUndefined;
  bool operator==(const GradientChange&) const = default;
};

/// What backwards have left since the node before: gradients, and counts of losses that went through scale_loss.
struct BackwardBooks {
  std::vector<GradientChange> gradients = {};
  ScaledBackwards backwards = {};
  bool asked_for_counts = false;
  bool operator==(const BackwardBooks& other) const;
};

/// An operator of LibTorch, or a call of the library.
struct Node {
  std::optional<c10::OperatorHandle> op = {};  // of an operator
  std::string what = {};                       // its name, or what the call says of itself
  std::vector<StepValue> inputs = {};
  std::vector<StepValue> outputs = {};
  bool has_grad_mode = false;         // in which it ran: some kernels keep more where gradients are on
  bool is_view = false;               // it computes nothing
  std::vector<int32_t> written = {};  // the tensors that it writes in place
  int32_t weight = -1;                // of a product that stays factors: the variable whose gradient it is
  // Of a call.
  CallAgain again = nullptr;
  BackwardBooks before = {};
};

/// One run of a step by one replica.
struct StepForm {
  std::vector<Source> sources = {};
  std::vector<StepTensor> tensors = {};
  std::vector<std::shared_ptr<VariableState>> variables = {};
  std::vector<bool> are_trained = {};                                 // by variable: whether it required a gradient
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> outer = {};  // whose addresses no other memory gets meanwhile
  std::vector<c10::Scalar> scalars = {};
  std::vector<Node> nodes = {};
  BackwardBooks at_end = {};
  std::vector<int32_t> results = {};  // the tensors that the function returned

  int64_t num_views() const;
  int64_t num_calls() const;
};

/// The first thing in which two runs differ, in words; empty where they are equal.
std::string difference(const StepForm& one, const StepForm& other);

/// One line for each node: "%7 = aten::mm(%5, %6)  [64, 10] Float".
std::string text_of(const StepForm& form);

}  // namespace lockstep::internal::capture
