#include "lockstep/variable/kinds/derived_states.h"

#include <utility>

namespace lockstep::internal::inline variable {

void DerivedStates::add(std::weak_ptr<DerivedState> derived) {
  std::erase_if(all_, [](const std::weak_ptr<DerivedState>& one) { return one.expired(); });
  all_.push_back(std::move(derived));
}

void DerivedStates::start_anew(const std::set<const VariableState*>& loaded) const {
  for (const auto& weak : all_) {
    if (const auto one = weak.lock()) one->start_anew(loaded);
  }
}

std::vector<std::string> DerivedStates::made_from(const VariableState& variable) const {
  std::vector<std::string> names;
  for (const auto& weak : all_) {
    const auto one = weak.lock();
    if (!one) continue;
    for (std::string& name : one->made_from(variable)) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace lockstep::internal::variable
