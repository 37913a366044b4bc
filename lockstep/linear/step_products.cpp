#include "lockstep/linear/step_products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/mm_ops.h>

#include <atomic>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/core/switches.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/intercept/bring_below.h"
#include "lockstep/intercept/operator_listener.h"
#include "lockstep/intercept/scopes.h"
#include "lockstep/linear/factored_weights.h"
#include "lockstep/linear/few_samples_product.h"
#include "lockstep/linear/plain_tensor.h"
#include "lockstep/linear/product_order.h"

namespace lockstep::internal::inline linear {

namespace {

enum class Choice { kOff, kAuto, kAlways };
std::atomic<Choice> choice{Choice::kOff};
std::atomic<int64_t> num_computed{0};

/// With fewer, LibTorch's product is as fast or faster; of one sample it is another routine.
constexpr int64_t kFewestSamples = 4;
/// The result has at least so many columns; with fewer, LibTorch adds in another order.
constexpr int64_t kFewestColumns = 12;

/// The most samples with which the library's product with a weight of so many elements is the faster one, as measured
/// in docs/few-samples-products.md. A weight that stays in the caches gains nothing.
int64_t most_samples(int64_t elements) {
  if (choice.load(std::memory_order_relaxed) == Choice::kAlways) return 192;  // several tiles of samples, for tests
  if (elements >= 1 << 24) return 128;
  if (elements >= 1 << 22) return 64;
  if (elements >= 1 << 19) return 32;
  return elements >= 1 << 18 ? 16 : 0;
}

/// A cheap look at the shapes, for the common case that they are not these.
bool may_have_few_samples(const at::Tensor& left, const at::Tensor& right) {
  if (choice.load(std::memory_order_relaxed) == Choice::kOff || left.dim() != 2 || right.dim() != 2) return false;
  const int64_t samples = left.size(0);
  return samples >= kFewestSamples && samples <= most_samples(right.numel());
}

bool is_plain(const at::Tensor& tensor) { return is_plain_float(tensor) || is_plain_inference_float(tensor); }

bool is_dense(const at::Tensor& matrix) { return matrix.stride(1) == 1 && matrix.stride(0) == matrix.size(1); }

/// `left` times `right`, plus `bias` where it is defined; undefined where it is left to LibTorch.
at::Tensor few_samples_product(const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias) {
  if (!may_have_few_samples(left, right) || !is_plain(left) || !is_plain(right) || !is_dense(left)) return {};
  // In both products of a linear layer its weight is to the right: transposed for the output, as it is for the gradient
  // of the input.
  const bool forward = right.stride(0) == 1 && right.stride(1) == right.size(0);
  if (!forward && !is_dense(right)) return {};
  if (right.size(0) < 2 || right.size(1) < kFewestColumns || left.size(1) != right.size(0)) return {};
  if (bias.defined() &&
      !(forward && is_plain(bias) && bias.dim() == 1 && bias.size(0) == right.size(1) && bias.stride(0) == 1))
    return {};
  if (at::get_num_threads() != 1) return {};  // LibTorch's product would use them all
  const FewSamplesProducts* const products = few_samples_products();
  if (!products) return {};

  FewSamplesWork work = {};
  work.samples = left.size(0);
  work.rows = right.size(forward ? 1 : 0);
  work.columns = right.size(forward ? 0 : 1);
  const LinearProduct product = !forward         ? LinearProduct::kInputGradient
                                : bias.defined() ? LinearProduct::kOutputWithBias
                                                 : LinearProduct::kOutput;
  const std::optional<SumOrder> order = sum_order_of_libtorch(product, work.samples, work.rows, work.columns);
  if (!order) return {};
  work.order = *order;
  at::Tensor result = at::empty({work.samples, right.size(1)}, left.options());
  const at::Tensor scratch = at::empty({few_samples_scratch(work.samples, work.rows, work.columns)}, left.options());
  work.weight = host_numbers<float>(right).data();
  work.input = host_numbers<float>(left).data();
  work.bias = bias.defined() ? host_numbers<float>(bias).data() : nullptr;
  work.out = host_numbers_to_write<float>(result).data();
  work.scratch = host_numbers_to_write<float>(scratch).data();
  (forward ? products->forward : products->input_gradient)(work);
  num_computed.fetch_add(1, std::memory_order_relaxed);
  return result;
}

/// Which calls the listeners below hear. Both stand below autograd, because autograd has to record a product before it
/// is computed.
bool may_be_ours(const at::Tensor& left, const at::Tensor& right) {
  return may_have_few_samples(left, right) || may_stay_factors(left, right);
}
bool sum_may_be_ours(const at::Tensor& /*bias*/, const at::Tensor& left, const at::Tensor& right,
                     const at::Scalar& /*beta*/, const at::Scalar& /*alpha*/) {
  return may_have_few_samples(left, right);
}

class FactoredGradients final : public OperatorListener {
 public:
  void hear(OperatorCall& call) override {
    const std::span<c10::IValue> inputs = call.inputs();
    // A tensor without memory, and a ListeningScope, bring products here from any thread.
    if (!is_intercepted()) return;
    at::Tensor gradient = factored_gradient(inputs[0].toTensor(), inputs[1].toTensor());
    if (gradient.defined()) call.answer(std::move(gradient));
  }
};

class StepProducts final : public OperatorListener {
 public:
  explicit StepProducts(const c10::OperatorHandle& mm) : mm_(mm) {}

  void hear(OperatorCall& call) override {
    const std::span<c10::IValue> inputs = call.inputs();
    if (!is_intercepted()) return;
    at::Tensor product;
    if (&call.op().schema() == &mm_.schema()) {
      product = few_samples_product(inputs[0].toTensor(), inputs[1].toTensor(), {});
    } else if (is_one(inputs[3].toScalar()) && is_one(inputs[4].toScalar())) {
      product = few_samples_product(inputs[1].toTensor(), inputs[2].toTensor(), inputs[0].toTensor());
    }
    if (product.defined()) call.answer(std::move(product));
  }

 private:
  static bool is_one(const at::Scalar& number) { return !number.isComplex() && number.toDouble() == 1; }

  const c10::OperatorHandle mm_;
};

bool register_listeners() {
  auto& dispatcher = c10::Dispatcher::singleton();
  const c10::OperatorHandle mm = dispatcher.findSchemaOrThrow("aten::mm", "");
  const c10::OperatorHandle addmm = dispatcher.findSchemaOrThrow("aten::addmm", "");
  // Never destroyed, as listeners are.
  static auto* const gradients = new FactoredGradients;
  static auto* const products = new StepProducts(mm);
  listen_below_autograd(ListenerRank::kFactoredGradients, *gradients, {mm});
  listen_below_autograd(ListenerRank::kFewSamplesProducts, *products, {mm, addmm});
  bring_below_autograd<at::_ops::mm, &may_be_ours>("mm");
  bring_below_autograd<at::_ops::addmm, &sum_may_be_ours>("addmm");
  return true;
}

Choice asked() {
  return choice_of("LOCKSTEP_FEW_SAMPLES_PRODUCTS",
                   {{"auto", Choice::kAuto}, {"off", Choice::kOff}, {"always", Choice::kAlways}}, Choice::kAuto);
}

}  // namespace

void use_step_products() {
  const Choice now = asked();
  if (!kTellsRunningNode) return;  // before LibTorch 2.0, these listeners have not been tried
  [[maybe_unused]] static const bool registered = register_listeners();
  choice = now;
}

int64_t num_few_samples_products() { return num_computed; }

}  // namespace lockstep::internal::linear
