#include "lockstep/optim/optimizer_digest.h"

#include <array>
#include <bit>

#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline optim {

Digest digest_of(const std::vector<std::shared_ptr<VariableState>>& variables, const std::vector<RuleGroup>& groups) {
  Digest digest;
  for (const auto& variable : variables) {
    const at::Tensor& like = variable->like();
    digest = digest.with(variable->name()).with(like.scalar_type()).with_all(like.sizes()).with_all(like.strides());
  }
  for (const RuleGroup& group : groups) {
    digest = digest.with(group.variables.size()).with(group.rule->name()).with(group.rule->kind());
    for (const SlotSpec& slot : group.rule->slots()) digest = digest.with(slot.name).with(slot.initial);
    if (const auto own = group.rule->own()) digest = digest.with(own->elementwise()).with(group.rule->options());
    // All other options that are numbers enter the coefficients. At a rate of 0 some would be multiplied by it.
    const Coefficients second = group.rule->coefficients(2, /*learning_rate=*/1);
    // Does not compile where Coefficients has members that are no double.
    digest = digest.with_all(std::bit_cast<std::array<double, sizeof(Coefficients) / sizeof(double)>>(second));
  }
  return digest;
}

Digest with_settings(Digest digest, const std::vector<std::unique_ptr<GroupRule>>& rules) {
  for (const auto& rule : rules) {
    const RuleSettings& now = rule->settings();
    digest = digest.with(now.learning_rate).with(now.weight_decay).with(now.momentum);
  }
  return digest;
}

}  // namespace lockstep::internal::optim
