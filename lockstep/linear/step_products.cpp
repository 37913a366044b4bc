#include "lockstep/linear/step_products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/mm_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <optional>

#include "lockstep/core/switches.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/linear/factored_tensor.h"
#include "lockstep/linear/factored_weights.h"
#include "lockstep/linear/few_samples_product.h"
#include "lockstep/linear/plain_tensor.h"
#include "lockstep/linear/product_order.h"
#include "lockstep/replica/random_streams.h"

namespace lockstep::internal {

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
  // A tensor without memory brings its products here from any thread.
  if (!c10::impl::tls_is_dispatch_key_included(kStepKey)) return {};
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
  work.weight = static_cast<const float*>(address_of(right));
  work.input = static_cast<const float*>(address_of(left));
  work.bias = bias.defined() ? static_cast<const float*>(address_of(bias)) : nullptr;
  work.out = result.data_ptr<float>();
  work.scratch = scratch.data_ptr<float>();
  (forward ? products->forward : products->input_gradient)(work);
  num_computed.fetch_add(1, std::memory_order_relaxed);
  return result;
}

c10::DispatchKeySet after(c10::DispatchKeySet keys, c10::DispatchKey key) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
}

/// For what comes after the step's own kernel. Autograd has to record a product before it is computed, so one that may
/// be the library's own meets a second kernel below autograd: that of kLazyKey.
c10::DispatchKeySet keys_after_step(c10::DispatchKeySet keys, const at::Tensor& left, const at::Tensor& right) {
  const c10::DispatchKeySet rest = after(keys, kStepKey);
  return may_have_few_samples(left, right) ? rest | c10::DispatchKeySet(kLazyKey) : rest;
}

at::Tensor mm_in_step(c10::DispatchKeySet keys, const at::Tensor& left, const at::Tensor& right) {
  at::Tensor gradient = factored_gradient(left, right);
  if (gradient.defined()) return gradient;
  return at::_ops::mm::redispatch(keys_after_step(keys, left, right), left, right);
}

at::Tensor addmm_in_step(c10::DispatchKeySet keys, const at::Tensor& bias, const at::Tensor& left,
                         const at::Tensor& right, const at::Scalar& beta, const at::Scalar& alpha) {
  return at::_ops::addmm::redispatch(keys_after_step(keys, left, right), bias, left, right, beta, alpha);
}

at::Tensor mm_below_autograd(c10::DispatchKeySet keys, const at::Tensor& left, const at::Tensor& right) {
  for (const at::Tensor& operand : {left, right}) materialize(operand);
  at::Tensor product = few_samples_product(left, right, {});
  return product.defined() ? product : at::_ops::mm::redispatch(after(keys, kLazyKey), left, right);
}

at::Tensor addmm_below_autograd(c10::DispatchKeySet keys, const at::Tensor& bias, const at::Tensor& left,
                                const at::Tensor& right, const at::Scalar& beta, const at::Scalar& alpha) {
  for (const at::Tensor& operand : {bias, left, right}) materialize(operand);
  if (!beta.isComplex() && !alpha.isComplex() && beta.toDouble() == 1 && alpha.toDouble() == 1) {
    at::Tensor product = few_samples_product(left, right, bias);
    if (product.defined()) return product;
  }
  return at::_ops::addmm::redispatch(after(keys, kLazyKey), bias, left, right, beta, alpha);
}

void register_kernels() {
  // Never destroyed, as in random_streams.cpp.
  [[gnu::used]] static auto* const in_step = [] {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", kStepKey, __FILE__, __LINE__);
    library->impl("mm", TORCH_FN(mm_in_step));
    library->impl("addmm", TORCH_FN(addmm_in_step));
    return library;
  }();
  [[gnu::used]] static auto* const below_autograd = [] {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", kLazyKey, __FILE__, __LINE__);
    library->impl("mm", TORCH_FN(mm_below_autograd));
    library->impl("addmm", TORCH_FN(addmm_below_autograd));
    return library;
  }();
}

Choice asked() {
  return choice_of("LOCKSTEP_FEW_SAMPLES_PRODUCTS",
                   {{"auto", Choice::kAuto}, {"off", Choice::kOff}, {"always", Choice::kAlways}}, Choice::kAuto);
}

}  // namespace

void use_step_products() {
  const Choice now = asked();
  if (!kTellsRunningNode) return;  // before LibTorch 2.0, these kernels have not been tried
  register_kernels();
  choice = now;
}

int64_t num_few_samples_products() { return num_computed; }

}  // namespace lockstep::internal
