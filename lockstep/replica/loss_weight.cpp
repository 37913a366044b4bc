#include "lockstep/replica/loss_weight.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "lockstep/core/torch_compat.h"

namespace lockstep::internal {

namespace {

/// Whether `value` is one number in the host's memory and nothing else: no subclass, no wrapper of a transformation, no
/// lazy negation.
bool is_plain_number(const at::Tensor& value) {
  static const c10::DispatchKeySet plain = [] {
    const c10::InferenceMode outside(false);
    return at::Tensor(at::detail::empty_cpu({}, at::kFloat)).key_set();
  }();
  return value.defined() && value.dim() == 0 && value.key_set() == plain &&
         (value.scalar_type() == at::kFloat || value.scalar_type() == at::kDouble);
}

/// The product as at::mul computes it: the factor is first rounded to the number's own type.
at::Tensor product(const at::Tensor& number, double factor) {
  at::Tensor result = at::detail::empty_cpu({}, number.scalar_type());
  if (number.scalar_type() == at::kFloat) {
    *static_cast<float*>(result.data_ptr()) =
        *static_cast<const float*>(address_of(number)) * static_cast<float>(factor);
  } else {
    *static_cast<double*>(result.data_ptr()) = *static_cast<const double*>(address_of(number)) * factor;
  }
  return result;
}

struct WeightedLossBackward final : torch::autograd::Node {
  explicit WeightedLossBackward(double factor) : weight(factor) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const at::Tensor& gradient = gradients.front();
    if (!gradient.defined()) return {at::Tensor()};
    const bool by_hand = !at::GradMode::is_enabled() && is_plain_number(gradient);
    return {by_hand ? product(gradient, weight) : gradient * weight};
  }
  const double weight;
};

struct ZeroThatKeepsGraph : torch::autograd::Function<ZeroThatKeepsGraph> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& loss) { return at::zeros_like(loss); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};  // undefined, not zero: 0 times what an empty batch left in the graph may be NaN
  }
};

}  // namespace

at::Tensor weighted_loss(const at::Tensor& loss, double weight) {
  if (!is_plain_number(loss) || torch::autograd::isFwGradDefined(loss)) return loss * weight;
  at::Tensor result = product(loss, weight);
  if (torch::autograd::compute_requires_grad(loss)) {
    const auto node = make_autograd_node<WeightedLossBackward>(weight);
    node->set_next_edges(torch::autograd::collect_next_edges(loss));
    torch::autograd::set_history(result, node);
  }
  return result;
}

at::Tensor zero_that_keeps_graph(const at::Tensor& loss) { return ZeroThatKeepsGraph::apply(loss); }

}  // namespace lockstep::internal
