#include "lockstep/optim/optimizer_digest.h"

#include <array>
#include <cstring>
#include <functional>
#include <string>

#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

OptimizerDigest OptimizerDigest::with(uint64_t more) const {
  OptimizerDigest next;
  next.value_ = ((value_ ^ more) + 1) * 0x9e3779b97f4a7c15u;
  next.value_ ^= next.value_ >> 32;
  return next;
}

OptimizerDigest OptimizerDigest::with(double more) const {
  uint64_t bits = 0;
  std::memcpy(&bits, &more, sizeof bits);
  return with(bits);
}

OptimizerDigest OptimizerDigest::with_settings(const std::vector<std::unique_ptr<GroupRule>>& rules) const {
  OptimizerDigest digest = *this;
  for (const auto& rule : rules) {
    const RuleSettings& now = rule->settings();
    digest = digest.with(now.learning_rate).with(now.weight_decay).with(now.momentum);
  }
  return digest;
}

OptimizerDigest OptimizerDigest::of(const std::vector<std::shared_ptr<VariableState>>& variables,
                                    const std::vector<RuleGroup>& groups) {
  const std::hash<std::string> hash;
  OptimizerDigest digest;
  for (const auto& variable : variables) {
    digest = digest.with(uint64_t{hash(variable->name())});
    digest = digest.with(static_cast<uint64_t>(variable->like().scalar_type()));
    for (const int64_t size : variable->like().sizes()) digest = digest.with(static_cast<uint64_t>(size));
    for (const int64_t stride : variable->like().strides()) digest = digest.with(static_cast<uint64_t>(stride));
  }
  for (const RuleGroup& group : groups) {
    digest = digest.with(uint64_t{group.variables.size()}).with(uint64_t{hash(group.rule->name())});
    digest = digest.with(static_cast<uint64_t>(group.rule->kind()));
    for (const SlotSpec& slot : group.rule->slots()) digest = digest.with(uint64_t{hash(slot.name)}).with(slot.initial);
    if (group.rule->own()) digest = digest.with(uint64_t{hash(group.rule->options())});
    // All other options that are numbers enter the coefficients. At a rate of 0 some would be multiplied by it.
    const Coefficients second = group.rule->coefficients(2, /*learning_rate=*/1);
    std::array<double, sizeof(Coefficients) / sizeof(double)> numbers{};
    static_assert(sizeof numbers == sizeof(Coefficients), "Coefficients has members that are no double");
    std::memcpy(numbers.data(), &second, sizeof second);
    for (const double number : numbers) digest = digest.with(number);
  }
  return digest;
}

}  // namespace lockstep::internal
