#include "lockstep/server/own_things.h"

#include <utility>

#include "lockstep/optim/optimizer_state.h"
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

bool OwnThings::has_schedules() const { return has_schedules_ || (depth_ > 0 && schedule_versions() != schedules_); }

std::vector<std::shared_ptr<const void>> OwnThings::things() const {
  std::vector<std::shared_ptr<const void>> all;
  for (const Variable& one : strategy_.variables()) all.push_back(one.shared_state());
  for (auto& [deal, text] : StrategyAccess::data_sets(strategy_)) all.push_back(deal);
  return all;
}

std::vector<uint64_t> OwnThings::schedule_versions() const {
  std::vector<uint64_t> versions;
  for (const Optimizer& one : StrategyAccess::optimizers(strategy_))
    versions.push_back(one.shared_state().counts().schedule_version());
  return versions;
}

void OwnThings::begin() {
  const CallerScope as_task(Caller::kTask);
  const GateHold hold(gate_, "Strategy::variables");
  if (depth_++ > 0) return;
  for (const auto& one : things()) {
    if (!own_.contains(one)) others_.insert(one);
  }
  schedules_ = schedule_versions();
}

void OwnThings::end() {
  const CallerScope as_task(Caller::kTask);
  const GateHold hold(gate_, "Strategy::variables");
  has_schedules_ = has_schedules();
  if (--depth_ > 0) return;
  own_.clear();  // without those that are gone
  for (const auto& one : things()) {
    if (!others_.contains(one)) own_.insert(one);
  }
  others_.clear();
}

}  // namespace lockstep::internal::server
