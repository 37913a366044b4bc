#include "lockstep/linear/factored_tensor.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/intercept/operator_listener.h"
#include "lockstep/linear/factored_weights.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline linear {

namespace {

class FactoredTensor;

/// One matrix and all tensors that show it.
class Matrix {
 public:
  Matrix(std::shared_ptr<const Factors> factors, std::weak_ptr<VariableState> variable)
      : variable_(std::move(variable)),
        rows_(factors->rows()),
        columns_(factors->columns()),
        factors_(std::move(factors)) {}

  const std::weak_ptr<VariableState>& variable() const { return variable_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  /// Null once the matrix is materialized.
  std::shared_ptr<const Factors> factors() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return factors_;
  }
  /// A new tensor that shows the matrix, or its transpose; undefined once the matrix is materialized.
  static at::Tensor view_of(const std::shared_ptr<Matrix>& matrix, bool transposed);
  /// Adds to the matrix without materializing it. False where that cannot be: then nothing has changed.
  bool add(const Factors& other);
  /// Computes the matrix and gives all tensors its memory, if that has not happened yet.
  void materialize();
  void leave(FactoredTensor* tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase(tensors_, tensor);
  }

 private:
  // Weak, as the variable may own the gradient. Gone: nobody asks for the variable's name or form any more.
  const std::weak_ptr<VariableState> variable_;
  const int64_t rows_;
  const int64_t columns_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::shared_ptr<const Factors> factors_;
  std::vector<FactoredTensor*> tensors_;
};

class FactoredTensor final : public LazyTensor {
 public:
  FactoredTensor(std::shared_ptr<Matrix> matrix, bool transposed)
      : LazyTensor(sizes_of(*matrix, transposed), strides_of(*matrix, transposed), message_of(*matrix)),
        matrix_(std::move(matrix)),
        transposed_(transposed) {}
  ~FactoredTensor() override { matrix_->leave(this); }
  FactoredTensor(const FactoredTensor&) = delete;
  FactoredTensor& operator=(const FactoredTensor&) = delete;

  const std::shared_ptr<Matrix>& matrix() const { return matrix_; }
  bool transposed() const { return transposed_; }
  using LazyTensor::adopt;

  void materialize() override { matrix_->materialize(); }

  // Autograd makes the result of detach() in this way.
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override {
    return copied(c10::VariableVersion(version), allow_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override {
    return copied(std::move(version), allow_change);
  }
  // set_data() of this tensor: it becomes another one.
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& from) override {
    if (auto* const other = dynamic_cast<FactoredTensor*>(from.get())) other->materialize();
    matrix_->leave(this);
    TensorImpl::shallow_copy_from(from);
  }
  void release_resources() override {
    matrix_->leave(this);
    TensorImpl::release_resources();
  }

 private:
  static std::array<int64_t, 2> sizes_of(const Matrix& matrix, bool transposed) {
    return transposed ? std::array{matrix.columns(), matrix.rows()} : std::array{matrix.rows(), matrix.columns()};
  }
  static std::array<int64_t, 2> strides_of(const Matrix& matrix, bool transposed) {
    return transposed ? std::array{int64_t{1}, matrix.columns()} : std::array{matrix.columns(), int64_t{1}};
  }
  static std::string message_of(const Matrix& matrix) {
    const std::shared_ptr<VariableState> variable = matrix.variable().lock();
    return fmt::format(
        "the gradient of variable '{}' has no memory yet: it is kept as two factors until an operator reads it. Call "
        ".grad().clone() first, or set LOCKSTEP_FACTORED_GRADIENTS=off",
        variable ? variable->name() : "");
  }

  c10::intrusive_ptr<TensorImpl> copied(c10::VariableVersion&& version, bool allow_change) const {
    const at::Tensor view = key_set().has(kLazyKey) ? Matrix::view_of(matrix_, transposed_) : at::Tensor();
    if (!view.defined()) return TensorImpl::shallow_copy_and_detach(std::move(version), allow_change);
    const c10::intrusive_ptr<TensorImpl> copy = view.getIntrusivePtr();
    copy->set_version_counter(std::move(version));
    copy->set_allow_tensor_metadata_change(allow_change);
    return copy;
  }

  const std::shared_ptr<Matrix> matrix_;
  const bool transposed_;
};

at::Tensor Matrix::view_of(const std::shared_ptr<Matrix>& matrix, bool transposed) {
  // A view of an ordinary tensor is an ordinary tensor, in inference mode too.
  std::optional<c10::InferenceMode> normal;
  if (c10::InferenceMode::is_enabled()) normal.emplace(false);
  auto tensor = c10::make_intrusive<FactoredTensor>(matrix, transposed);
  const std::lock_guard<std::mutex> lock(matrix->mutex_);
  if (!matrix->factors_) return {};
  matrix->tensors_.push_back(tensor.get());
  return at::Tensor(std::move(tensor));
}

bool Matrix::add(const Factors& other) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!factors_ || other.rows() != rows_ || other.columns() != columns_) return false;
  if (factors_->samples() + other.samples() > kMostSamples) return false;
  std::shared_ptr<const Factors> sum = Factors::sum(*factors_, other);
  if (!sum) return false;
  factors_ = std::move(sum);
  return true;
}

void Matrix::materialize() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!factors_) return;
  const at::NoGradGuard no_grad;
  const at::Tensor written = factors_->product();
  factors_.reset();
  if (const std::shared_ptr<VariableState> variable = variable_.lock())
    variable->set_gradient_form(GradientForm::kRead);
  for (FactoredTensor* tensor : tensors_) tensor->adopt(written);
  tensors_.clear();
}

FactoredTensor* factored(const at::Tensor& tensor) {
  return tensor.defined() ? dynamic_cast<FactoredTensor*>(lazy_tensor(tensor)) : nullptr;
}

void materialize_all(const c10::IValue& value) {
  if (value.isTensor()) {
    materialize(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) materialize(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& one : value.toListRef()) materialize_all(one);
  }
}

bool is_without_memory(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().key_set().has(kLazyKey);
}

/// t(), detach() or alias() of a tensor without memory; undefined where there is more to do.
at::Tensor viewed(std::string_view name, const at::Tensor& tensor) {
  const FactoredTensor* const one = factored(tensor);
  return one ? Matrix::view_of(one->matrix(), one->transposed() != (name == "aten::t")) : at::Tensor();
}

/// The sum of two tensors without memory, in `a` where `in_place`; undefined where it has to be computed.
at::Tensor added(const at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha, bool in_place) {
  const FactoredTensor* const left = factored(a);
  const FactoredTensor* const right = factored(b);
  if (!left || !right || left->transposed() != right->transposed() || left->matrix() == right->matrix()) return {};
  if (alpha.toDouble() != 1) return {};
  const std::shared_ptr<const Factors> other = right->matrix()->factors();
  if (!other) return {};
  if (in_place) return left->matrix()->add(*other) ? a : at::Tensor();
  const std::shared_ptr<const Factors> own = left->matrix()->factors();
  if (!own) return {};
  const auto sum = std::make_shared<Matrix>(own, left->matrix()->variable());
  if (!sum->add(*other)) return {};
  return Matrix::view_of(sum, left->transposed());
}

/// Hears each operator that is given a tensor without memory. Autograd and the version counters come before it.
class TensorsWithoutMemory final : public OperatorListener {
 public:
  void hear(OperatorCall& call) override {
    const std::span<c10::IValue> inputs = call.inputs();
    if (!inputs.empty() && is_without_memory(inputs[0])) {
      at::Tensor result = result_without_memory(call);
      if (result.defined()) return call.answer(std::move(result));
    }
    for (const c10::IValue& input : inputs) materialize_all(input);
  }

 private:
  /// Undefined where the operator needs the tensors' memory.
  static at::Tensor result_without_memory(OperatorCall& call) {
    const std::string& name = call.name();
    const std::span<c10::IValue> inputs = call.inputs();
    if (name == "aten::t" || name == "aten::detach" || name == "aten::alias") return viewed(name, inputs[0].toTensor());
    if ((name != "aten::add" && name != "aten::add_") || call.overload() != "Tensor") return {};
    return added(inputs[0].toTensor(), inputs[1].toTensor(), inputs[2].toScalar(), name == "aten::add_");
  }
};

}  // namespace

void register_factored_tensors() {
  static auto* const listener = new TensorsWithoutMemory;  // never destroyed, as listeners are
  listen_below_autograd(ListenerRank::kTensorsWithoutMemory, *listener);
}

void materialize(const at::Tensor& tensor) {
  if (FactoredTensor* const one = factored(tensor)) return one->materialize();
  if (!tensor.defined() || !tensor.key_set().has(kLazyKey)) return;
  throw UsageError("LS-GRADIENT-WITHOUT-MEMORY",
                   "a tensor was given, by set_data() or .data, a gradient that is kept as two factors",
                   "use .grad().clone(), or set LOCKSTEP_FACTORED_GRADIENTS=off");
}

void require_in_memory(const at::Tensor& gradient, VariableState& variable) {
  if (LazyTensor* const lazy = lazy_tensor(gradient)) lazy->materialize();
  if (gradient.numel() < FactoredWeights::kFewestElements) return;
  // An earlier backward has said this: had this one made factors, they would have been used, or read.
  const GradientForm said = variable.gradient_form();
  if (said == GradientForm::kNoProduct || said == GradientForm::kFactors)
    variable.set_gradient_form(GradientForm::kOtherProduct);
}

at::Tensor make_factored(std::shared_ptr<const Factors> factors, const std::shared_ptr<VariableState>& variable) {
  return Matrix::view_of(std::make_shared<Matrix>(std::move(factors), variable), /*transposed=*/false);
}

std::shared_ptr<const Factors> factors_of(const at::Tensor& tensor) {
  const FactoredTensor* const one = factored(tensor);
  return one && !one->transposed() ? one->matrix()->factors() : nullptr;
}

}  // namespace lockstep::internal::linear
