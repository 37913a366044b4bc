#include "lockstep/server/local/values_store.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/server/local/push_parts.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline server {

namespace {

/// The error for which a push is refused.
Payload refused(std::exception_ptr error) { return std::make_shared<StepFailure>(StepFailure{std::move(error)}); }

/// What `optimizer` updates of these pushes.
bool has_gradient_of(const OptimizerState& optimizer, const std::vector<const StepPush*>& parts) {
  const auto& variables = optimizer.variables();
  return std::ranges::any_of(parts, [&](const StepPush* part) {
    return part && std::ranges::any_of(part->gradients, [&](const StepPush::Gradient& one) {
             return std::ranges::any_of(variables, [&](const auto& v) { return v.get() == &one.variable.state(); });
           });
  });
}

/// Forgets rows that no push has named in EmbeddingOptions::evict_after steps. It looks at all rows, so it waits for a
/// sixteenth of that number of steps.
void evict_old(TableState& state, int64_t steps) {
  const int64_t after = state.table.options().evict_after;
  if (after == 0 || steps - state.evicted_at < std::max<int64_t>(1, after / 16)) return;
  state.table.evict(steps - after + 1, steps);
  state.evicted_at = steps;
}

void change_component(ReplicaContext& context, const StepPush::Change& one) {
  switch (one.change) {
    case WorkerValues::Change::kAssign: return one.variable.assign(context, one.value);
    case WorkerValues::Change::kAdd: return one.variable.assign_add(context, one.value);
    case WorkerValues::Change::kSubtract: return one.variable.assign_sub(context, one.value);
  }
}

}  // namespace

ValuesStore::ValuesStore(Strategy& strategy, std::shared_ptr<StrategyGate> gate, int64_t counted, bool in_rounds,
                         std::function<void(std::exception_ptr)> failed, std::function<void(int64_t cut)> freeze)
    : strategy_(strategy),
      gate_(std::move(gate)),
      in_rounds_(in_rounds),
      failed_(std::move(failed)),
      freeze_(std::move(freeze)),
      steps_(counted) {}

Payload ValuesStore::hold(const HeldPush& push) {
  const auto& step = as<StepPush>(push.push);
  try {
    const GateHold hold(gate_, "Variable::read");
    require_options_of_round(push);
    for (const RowsOfStep& one : step.rows) {
      if (one.table->rule) one.table->table.check_room(one.ids, one.table->promised_rows);
    }
    Held& held = held_[&step] = {.step = push.step.step};
    for (const RowsOfStep& one : step.rows) {
      held.new_rows.push_back(one.table->table.count_new(one.ids));
      one.table->promised_rows += held.new_rows.back();
    }
    if (!step.options.check_finite || step.options.skip_non_finite) return {};
    const std::optional<std::string> bad = not_finite_in(step);
    if (!bad) return {};
    throw NonFiniteError(
        "LS-NOT-FINITE",
        fmt::format("step {}: the gradient of {} is infinite or NaN somewhere; the step does not count", push.step.step,
                    *bad),
        "lower the learning rate, or look at the samples of this step");
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const GateHold hold(gate_, "Variable::read");
    forget(step);
    return refused(error);
  }
}

void ValuesStore::require_options_of_round(const HeldPush& push) const {
  if (!in_rounds_) return;
  const int64_t parts = strategy_.num_replicas();
  const auto same = [](const StepOptions& a, const StepOptions& b) {
    return a.clip_global_norm == b.clip_global_norm && a.clip_value == b.clip_value &&
           a.check_finite == b.check_finite && a.skip_non_finite == b.skip_non_finite;
  };
  for (const auto& [other, held] : held_) {
    if (held.step / parts != push.step.step / parts || same(other->options, as<StepPush>(push.push).options)) continue;
    throw UsageError("LS-PUSH",
                     fmt::format("steps {} and {} are parts of one round, and pushed with different options", held.step,
                                 push.step.step),
                     "push with the same StepOptions in all steps of a round: one update is made of them");
  }
}

void ValuesStore::commit(const LogEntry& entry, const HeldPush& push) { round(entry, std::span(&push, 1)); }

void ValuesStore::round(const LogEntry& entry, std::span<const HeldPush> parts) {
  if (entry.apply) return apply(parts, has_coefficients_ ? std::optional(entry.coefficient) : std::nullopt);
  const GateHold hold(gate_, "Variable::read");
  ++applied_;
  forget(parts);
}

void ValuesStore::apply(std::span<const HeldPush> parts, std::optional<double> coefficient) try {
  const GateHold hold(gate_, "Strategy::run");
  ++applied_;
  ++read_;
  steps_ += static_cast<int64_t>(parts.size());
  forget(parts);
  std::vector<const StepPush*> by_replica(static_cast<std::size_t>(strategy_.num_replicas()), nullptr);
  for (const HeldPush& one : parts) {
    const auto& push = as<StepPush>(one.push);
    by_replica[static_cast<std::size_t>(push.part)] = &push;
  }
  const auto first = std::ranges::find_if(by_replica, [](const StepPush* one) { return one != nullptr; });
  if (first == by_replica.end()) return;
  StepOptions options = (*first)->options;
  options.loss_scaled_by_hand = true;  // the losses were scaled where they were computed
  options.gradients_changed_on_purpose = true;
  std::vector<Optimizer> optimizers = StrategyAccess::optimizers(strategy_);
  std::erase_if(optimizers, [&](const Optimizer& one) { return !has_gradient_of(one.shared_state(), by_replica); });
  const auto pushes_rows = [](const StepPush* one) { return one && !one->rows.empty(); };
  if (options.skip_non_finite &&
      std::ranges::any_of(by_replica, [](auto* one) { return one && not_finite_in(*one); })) {
    return;
  }
  double factor = 1;
  if (coefficient) {
    factor = *coefficient;
    options.clip_global_norm.reset();
  }
  // One optimizer clips by its own norm, with the bits of any strategy; several, and rows, by that of all.
  if (options.clip_global_norm && (optimizers.size() > 1 || std::ranges::any_of(by_replica, pushes_rows))) {
    factor = clip_factor_of(squares_of(by_replica), *options.clip_global_norm);
    options.clip_global_norm.reset();
  }
  strategy_.run([&](ReplicaContext& ctx) {
    const int64_t r = ContextAccess::local_index(ctx);
    if (const StepPush* const push = by_replica[static_cast<std::size_t>(r)]) {
      const at::NoGradGuard no_grad;
      for (const StepPush::Gradient& one : push->gradients) {
        at::Tensor component = one.variable.state().component(r);
        const VariablePart* const part = cut_part_of(one.variable);
        // All rules but those that take whole variables, which are never cut, update each element by itself.
        const at::Tensor gradient = part != nullptr ? spread(one.gradient, *part, component.sizes()) : one.gradient;
        component.mutable_grad() = factor == 1 ? gradient : gradient * factor;
      }
      for (const StepPush::Buffer& one : push->buffers) {
        at::Tensor component = one.variable.state().component(r);
        if (component.sizes() == one.value.sizes()) {
          component.copy_(one.value);
        } else {
          component.set_data(one.value.clone());  // a buffer may grow
        }
      }
      for (const StepPush::Change& one : push->changes) {
        if (!one.variable.state().on_write()) change_component(ctx, one);
      }
    } else {
      ContextAccess::set_share(ctx, 1, 0, 1, 0);  // it has no gradients, as a part without samples
    }
    for (const Optimizer& one : optimizers) one.step(ctx, options);
  });
  for (const Optimizer& one : optimizers) {
    for (const auto& variable : one.shared_state().variables()) changed_[variable.get()] = read_;
  }
  Clip clip{.factor = factor};
  if (options.clip_value) clip.most = *options.clip_value;
  apply_rows(by_replica, clip);
  for (const StepPush* part : by_replica) {
    if (!part) continue;
    for (const StepPush::Buffer& one : part->buffers) note_change(one.variable);
    for (const StepPush::Change& one : part->changes) {
      if (one.variable.state().on_write()) change_now(one);
      note_change(one.variable);
    }
  }
} catch (...) {
  failed_(std::current_exception());
}

const VariablePart* ValuesStore::cut_part_of(const Variable& variable) const {
  const VariablePart* const part = part_here_ ? part_here_(variable.state()) : nullptr;
  return part != nullptr && !part->is_whole() ? part : nullptr;
}

void ValuesStore::change_now(const StepPush::Change& one) const {
  const VariablePart* const part = cut_part_of(one.variable);
  const at::Tensor value = part != nullptr ? spread(one.value, *part, one.variable.sizes()) : one.value;
  switch (one.change) {
    case WorkerValues::Change::kAssign: return one.variable.assign(value);
    case WorkerValues::Change::kAdd: return one.variable.assign_add(value);
    case WorkerValues::Change::kSubtract: return one.variable.assign_sub(value);
  }
}

void ValuesStore::drop(const HeldPush& push) {
  const GateHold hold(gate_, "Variable::read");
  forget(as<StepPush>(push.push));
}

void ValuesStore::forget(const StepPush& push) {
  const auto held = held_.extract(&push);
  if (!held) return;
  const std::vector<int64_t>& promised = held.mapped().new_rows;
  for (std::size_t i = 0; i < promised.size(); ++i) push.rows[i].table->promised_rows -= promised[i];
}

void ValuesStore::forget(std::span<const HeldPush> parts) {
  for (const HeldPush& one : parts) forget(as<StepPush>(one.push));
}

void ValuesStore::apply_rows(const std::vector<const StepPush*>& parts, const Clip& clip) {
  // Parts are put together in their order: rows that several have are added in it.
  std::vector<RowsOfStep> all;
  for (const StepPush* part : parts) {
    if (!part) continue;
    for (const RowsOfStep& one : part->rows) {
      if (!one.table->rule) continue;
      const auto found = std::ranges::find(all, one.table, &RowsOfStep::table);
      if (found == all.end()) {
        all.push_back(one);
      } else {
        found->ids.insert(found->ids.end(), one.ids.begin(), one.ids.end());
        found->gradients = at::cat({found->gradients, one.gradients});
      }
    }
  }
  for (const RowsOfStep& one : all) {
    TableState& state = *one.table;
    state.table.apply({.ids = one.ids,
                       .gradients = host_bytes(one.gradients).data(),
                       .learning_rate = state.rule->learning_rate(),
                       .position = steps_,
                       .clip = clip});
    evict_old(state, steps_);
  }
}

Payload ValuesStore::answer(const PullRequest& pull, Position /*position*/) {
  auto answer = std::make_shared<PulledTensors>();
  try {
    read(as<Wanted>(pull.request), *answer);
  } catch (...) {
    answer->error = std::current_exception();
  }
  return answer;
}

void ValuesStore::read(const Wanted& wanted, PulledTensors& answer) {
  const GateHold hold(gate_, "Variable::read");
  const at::NoGradGuard no_grad;
  if (const uint64_t writes = gate_->writes(); writes != writes_) {  // by the program, of any variable
    writes_ = writes;
    all_changed_ = ++read_;
  }
  answer.at = read_;
  if (const auto* rows = std::get_if<WantedRows>(&wanted)) {
    const RowTable& table = rows->table->table;
    const auto count = static_cast<int64_t>(rows->ids.size());
    at::Tensor weights = at::empty({count, table.options().dim}, table.options().dtype);
    table.look_up(rows->ids, host_bytes_to_write(weights).data());
    answer.values.push_back(std::move(weights));
    return;
  }
  const auto& variables = std::get<WantedVariables>(wanted);
  for (std::size_t i = 0; i < variables.variables.size(); ++i) {
    const VariableState& state = variables.variables[i].state();
    const auto changed = changed_.find(&state);
    const Position last = std::max(all_changed_, changed == changed_.end() ? 0 : changed->second);
    if (!variables.have[i].empty() && variables.have[i].front() >= last) {
      answer.values.emplace_back();
      continue;
    }
    state.require_sound();
    if (variables.whole && !state.on_write()) {
      answer.values.push_back(variables.variables[i].read());
      continue;
    }
    const at::Tensor value = state.component(state.on_write() ? 0 : variables.part).detach();
    const VariablePart* const part = cut_part_of(variables.variables[i]);
    const at::Tensor here = part != nullptr ? part_of(value, *part) : value;
    answer.values.push_back(lends_values_ ? here : here.clone());
  }
}

}  // namespace lockstep::internal::server
