#include "lockstep/server/own_things.h"

#include <utility>

#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal::inline server {

std::shared_ptr<void> OwnThings::scope() {
  struct Scope {
    explicit Scope(OwnThings& its_own) : own(its_own) { own.begin(); }
    ~Scope() { own.end(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    OwnThings& own;
  };
  return std::make_shared<Scope>(*this);
}

bool OwnThings::has(const std::shared_ptr<const void>& thing) const {
  return depth_ > 0 ? !others_.contains(thing) : own_.contains(thing);
}

std::vector<std::shared_ptr<const void>> OwnThings::things() const {
  std::vector<std::shared_ptr<const void>> all;
  for (const Variable& one : strategy_.variables()) all.push_back(one.shared_state());
  for (auto& [deal, text] : StrategyAccess::data_sets(strategy_)) all.push_back(deal);
  return all;
}

void OwnThings::begin() {
  const CallerScope as_task(Caller::kTask);
  const GateHold hold(gate_, "Strategy::variables");
  if (depth_++ > 0) return;
  for (const auto& one : things()) {
    if (!own_.contains(one)) others_.insert(one);
  }
}

void OwnThings::end() {
  const CallerScope as_task(Caller::kTask);
  const GateHold hold(gate_, "Strategy::variables");
  if (--depth_ > 0) return;
  own_.clear();  // without those that are gone
  for (const auto& one : things()) {
    if (!others_.contains(one)) own_.insert(one);
  }
  others_.clear();
}

}  // namespace lockstep::internal::server
