// The values of a run: the strategy's own variables, which a server changes.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/server/local/step_payloads.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/server/local/variable_parts.h"
#include "lockstep/server/protocol/server_machine.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline server {

/// Carries entries of the log out on the variables of a strategy. What a step pushed becomes the gradients of a replica
/// of the strategy: with rounds, replica i has those of part i, and otherwise the one replica has those of the step.
/// Then the strategy's optimizers make a step, in one run of the strategy. So rules, norms, slots and counts, and the
/// bits of a round, are those of any strategy with as many replicas.
///
/// All calls are made by the server's thread, which passes the strategy's gate for each.
class ValuesStore final : public ServerStore {
 public:
  /// `counted` steps with pushes count already. `freeze` is called at each cut, and keeps the values as they are until
  /// it returns. `failed` is told the error where an entry could not be carried out; afterwards the
  /// values are of no use.
  ValuesStore(Strategy& strategy, std::shared_ptr<StrategyGate> gate, int64_t counted, bool in_rounds,
              std::function<void(std::exception_ptr)> failed, std::function<void(int64_t cut)> freeze = {});

  /// From now on entries say what gradients are multiplied by: other servers have a part of what is clipped by its
  /// norm.
  void take_coefficients() { has_coefficients_ = true; }
  /// From now on this server has what `part_here` says of each variable: null for one that lies elsewhere. Steps push
  /// and pull that alone; the rest of a cut variable is of no use here. `part_here` outlives this.
  void keep_parts(std::function<const VariablePart*(const VariableState&)> part_here) {
    part_here_ = std::move(part_here);
  }
  /// From now on answers have tensors of this server, and no copies of them: whoever gets an answer uses it before the
  /// server reads its next entry.
  void lend_values() { lends_values_ = true; }
  /// Any value may have been changed.
  void note_all_changed() { all_changed_ = ++read_; }

  Payload hold(const HeldPush& push) override;
  void drop(const HeldPush& push) override;
  void commit(const LogEntry& entry, const HeldPush& push) override;
  Payload squares(const LogEntry& /*entry*/, std::span<const HeldPush> /*parts*/) override { return {}; }
  void round(const LogEntry& entry, std::span<const HeldPush> parts) override;
  void change(const LogEntry& /*entry*/) override {}
  void freeze(const LogEntry& entry) override {
    if (freeze_) freeze_(entry.number);
  }
  void release(const LogEntry& /*entry*/) override {}
  Payload answer(const PullRequest& pull, Position position) override;
  /// How many entries that change values were read; whoever holds the gate knows that no other one is.
  Position num_applied() const { return applied_; }

  /// How many steps with pushes count. On the server's thread, or while it waits in `freeze`.
  int64_t applied() const { return steps_; }

 private:
  void apply(std::span<const HeldPush> parts, std::optional<double> coefficient);
  void apply_rows(const std::vector<const StepPush*>& parts, const Clip& clip);
  void forget(std::span<const HeldPush> parts);
  /// A UsageError (LS-PUSH) where another part of the round is held that was pushed with other options.
  void require_options_of_round(const HeldPush& push) const;
  void read(const Wanted& wanted, PulledTensors& answer);
  /// The push is held no longer: what its new rows may take of tables' limits is free again.
  void forget(const StepPush& push);
  /// What this server has of a variable that is cut; otherwise null.
  const VariablePart* cut_part_of(const Variable& variable) const;
  void change_now(const StepPush::Change& change) const;
  void note_change(const Variable& variable) { changed_[&variable.state()] = read_; }

  Strategy& strategy_;
  const std::shared_ptr<StrategyGate> gate_;
  const bool in_rounds_;
  const std::function<void(std::exception_ptr)> failed_;
  const std::function<void(int64_t cut)> freeze_;
  std::function<const VariablePart*(const VariableState&)> part_here_ = {};
  bool has_coefficients_ = false;
  bool lends_values_ = false;
  int64_t steps_;             // with pushes that count, those before this run included
  Position applied_ = 0;      // guarded by the gate
  Position read_ = 1;         // counts changes
  Position all_changed_ = 0;  // when the program changed values last
  uint64_t writes_ = 0;       // of the gate, as of then
  struct Held {
    int64_t step = 0;
    std::vector<int64_t> new_rows = {};  // for each table of the push, as promised to its limit
  };
  std::map<const StepPush*, Held> held_ = {};
  std::map<const VariableState*, Position> changed_ = {};  // when a step changed a variable last
};

}  // namespace lockstep::internal::server
