#include "lockstep/replica/loss/loss_weight.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/replica/step_recorder.h"

namespace lockstep::internal::inline replica {

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
    host_numbers_to_write<float>(result).front() = host_numbers<float>(number).front() * static_cast<float>(factor);
  } else {
    host_numbers_to_write<double>(result).front() = host_numbers<double>(number).front() * factor;
  }
  return result;
}

bool is_one(const at::Tensor& gradient) {
  if (!is_plain_number(gradient)) return true;  // it is not read: it may wait for a device
  return gradient.scalar_type() == at::kFloat ? host_numbers<float>(gradient).front() == 1
                                              : host_numbers<double>(gradient).front() == 1;
}

struct WeightedLossBackward final : torch::autograd::Node {
  WeightedLossBackward(const ScaledLosses::Loss& of, std::shared_ptr<ScaledLosses> told)
      : loss(of), losses(std::move(told)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const at::Tensor& gradient = gradients.front();
    if (!gradient.defined()) return {at::Tensor()};
    if (losses) ScaledLosses::went_through(losses, loss, next_edge(0).function.get(), gradient);
    const bool by_hand = !at::GradMode::is_enabled() && is_plain_number(gradient);
    return {by_hand ? product(gradient, loss.weight) : gradient * loss.weight};
  }
  const ScaledLosses::Loss loss;
  const std::shared_ptr<ScaledLosses> losses;
};

struct ZeroThatKeepsGraph : torch::autograd::Function<ZeroThatKeepsGraph> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& loss) { return at::zeros_like(loss); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};  // undefined, not zero: 0 times what an empty batch left in the graph may be NaN
  }
};

}  // namespace

void ScaledLosses::went_through(const std::shared_ptr<ScaledLosses>& self, const Loss& loss,
                                torch::autograd::Node* root, const at::Tensor& gradient) {
  ++self->counts_.all;
  if (loss.weight > 0) ++self->counts_.weighted;
  if (self->lookers_ == 0 || !root) return;
  LossPass& pass = self->pass_;
  if (!self->is_open_) {
    self->is_open_ = true;
    pass = {pass.number + 1, self->step_, loss.place, loss.weight, loss.is_of_batch};
    torch::autograd::Engine::get_default_engine().queue_callback([self] { self->is_open_ = false; });
    pass.graph = look_at_graph(*root, loss.rows);
    pass.graph.is_multiplied = pass.graph.is_multiplied || !is_one(gradient);
  }
  pass.weight = std::max(pass.weight, loss.weight);
  pass.is_of_batch = pass.is_of_batch || loss.is_of_batch;
}

at::Tensor weighted_loss(const at::Tensor& loss, double weight) {
  return weighted_loss(loss, {.weight = weight}, nullptr);
}

at::Tensor weighted_loss(const at::Tensor& mean_loss, const ScaledLosses::Loss& loss,
                         const std::shared_ptr<ScaledLosses>& losses) {
  // A recorder hears operators alone.
  if (!is_plain_number(mean_loss) || torch::autograd::isFwGradDefined(mean_loss) || StepRecorder::current()) {
    const at::Tensor result = mean_loss * loss.weight;
    if (losses) watch_backward(result, mean_loss, loss, losses);
    return result;
  }
  at::Tensor result = product(mean_loss, loss.weight);
  if (torch::autograd::compute_requires_grad(mean_loss)) {
    const auto node = make_autograd_node<WeightedLossBackward>(loss, losses);
    node->set_next_edges(torch::autograd::collect_next_edges(mean_loss));
    torch::autograd::set_history(result, node);
  }
  return result;
}

void watch_backward(const at::Tensor& result, const at::Tensor& mean_loss, const ScaledLosses::Loss& loss,
                    const std::shared_ptr<ScaledLosses>& losses) {
  if (!result.requires_grad()) return;
  // The node lives as long as the graph of `result`, which has the hook.
  torch::autograd::Node* const root = mean_loss.grad_fn().get();
  result.register_hook(
      [losses, loss, root](const at::Tensor& gradient) { ScaledLosses::went_through(losses, loss, root, gradient); });
}

bool is_seen_not_finite(const at::Tensor& loss) {
  if (!is_plain_number(loss)) return false;
  return loss.scalar_type() == at::kFloat ? !std::isfinite(host_numbers<float>(loss).front())
                                          : !std::isfinite(host_numbers<double>(loss).front());
}

at::Tensor zero_that_keeps_graph(const at::Tensor& loss) { return ZeroThatKeepsGraph::apply(loss); }

}  // namespace lockstep::internal::replica
