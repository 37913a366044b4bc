// What the chief of a run alone has, where the tasks are processes.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline server {

/// Variables and data sets that are made inside coordinate(), or by callbacks of a Trainer, are made on the chief
/// alone. So are changes of schedules of learning rates. No other task has to have them, and no server holds them.
class OwnThings {
 public:
  /// Of this strategy, which outlives it.
  OwnThings(const Strategy& strategy, std::shared_ptr<StrategyGate> gate)
      : strategy_(strategy), gate_(std::move(gate)) {}

  /// While what it gives lives, what is made or changed is this task's alone. Scopes nest.
  std::shared_ptr<void> scope();

  // Both are called with the gate.
  /// Of a variable's state, or of what is behind a data set.
  bool has(const std::shared_ptr<const void>& thing) const;
  /// Whether schedules were set or taken away in a scope.
  bool has_schedules() const;

 private:
  using Set = std::set<std::weak_ptr<const void>, std::owner_less<>>;

  std::vector<std::shared_ptr<const void>> things() const;
  std::vector<uint64_t> schedule_versions() const;
  void begin();
  void end();

  const Strategy& strategy_;
  const std::shared_ptr<StrategyGate> gate_;
  int64_t depth_ = 0;                // of scopes; guarded by the gate, like the rest
  Set others_;                       // in a scope: what is not this task's alone
  Set own_;                          // of earlier scopes
  std::vector<uint64_t> schedules_;  // when the outermost scope began
  bool has_schedules_ = false;       // of earlier scopes
};

}  // namespace lockstep::internal::server
