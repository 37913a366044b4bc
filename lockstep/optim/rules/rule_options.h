// The options, of torch::optim and of rules of the program's own, from which make_optimizer() makes its rules.
#pragma once

#include <type_traits>
#include <variant>

namespace torch::optim {
struct SGDOptions;
struct AdamOptions;
struct AdamWOptions;
struct RMSpropOptions;
struct AdagradOptions;
}  // namespace torch::optim

namespace lockstep {
struct UpdateRuleOptions;
}

namespace lockstep::internal::inline optim {

/// The caller's options for an optimizer that has a rule; it owns nothing.
using RuleOptions =
    std::variant<const torch::optim::SGDOptions*, const torch::optim::AdamOptions*, const torch::optim::AdamWOptions*,
                 const torch::optim::RMSpropOptions*, const torch::optim::AdagradOptions*, const UpdateRuleOptions*>;

/// Whether there is a rule for options of this type.
template <class Options>
constexpr bool kHasRule = std::is_constructible_v<RuleOptions, const Options*>;

}  // namespace lockstep::internal::optim
