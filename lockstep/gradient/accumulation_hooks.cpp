#include "lockstep/gradient/accumulation_hooks.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace lockstep::internal::inline gradient {

class AccumulationHooks::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(std::shared_ptr<Slot> slot, std::size_t i, at::Tensor variable)
      : slot_(std::move(slot)), i_(i), variable_(std::move(variable)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    if (slot_->listener) slot_->listener(i_, variable_.grad());
    return outputs;
  }
  bool is_of(const std::shared_ptr<Slot>& slot) const { return slot_ == slot; }

 private:
  const std::shared_ptr<Slot> slot_;
  const std::size_t i_;
  const at::Tensor variable_;
};

void AccumulationHooks::begin(std::span<const std::shared_ptr<VariableState>> variables, int64_t r, Listener listener) {
  if (!slot_) slot_ = std::make_shared<Slot>();
  accumulators_.clear();
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const at::Tensor& variable = variables[i]->component(r);
    if (!variable.requires_grad() || !variable.is_leaf()) continue;
    auto accumulator = torch::autograd::impl::grad_accumulator(variable);
    const auto& hooks = accumulator->post_hooks();
    const bool has_one = std::any_of(hooks.begin(), hooks.end(), [&](const auto& hook) {
      const auto* const own = dynamic_cast<const Hook*>(hook.get());
      return own && own->is_of(slot_);
    });
    if (!has_one) accumulator->add_post_hook(std::make_unique<Hook>(slot_, i, variable));
    accumulators_.push_back(std::make_shared<decltype(accumulator)>(std::move(accumulator)));
  }
  slot_->listener = std::move(listener);
}

void AccumulationHooks::end() {
  accumulators_.clear();
  if (slot_) slot_->listener = nullptr;
}

}  // namespace lockstep::internal::gradient
