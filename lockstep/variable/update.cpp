#include "lockstep/variable/update.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/rounds.h"
#include "lockstep/core/error.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/on_read_state.h"
#include "lockstep/variable/kinds/written_memory.h"
#include "lockstep/variable/value_digests.h"

namespace lockstep::internal::inline variable {

namespace {

thread_local const UpdateScope* updating = nullptr;

/// Copies of the variable's values: the tensors on which an update's function is called.
std::vector<at::Tensor> values_to_change(VariableState& variable, bool for_each_replica) {
  std::vector<at::Tensor> values;
  if (variable.on_write()) {
    variable.require_whole("Strategy::update");
    variable.check_memory();  // a foreign write must not become part of the new value
    const std::size_t count =
        for_each_replica ? static_cast<std::size_t>(variable.num_components()) : variable.copies().size();
    for (std::size_t i = 0; i < count; ++i) values.push_back(variable.copies().front().clone());  // all are equal
  } else {
    for (int64_t r = 0; r < variable.num_components(); ++r) values.push_back(plain(variable.component(r)).clone());
  }
  return values;
}

/// Throws a DivergenceError where an update left the copies of an on-write variable different.
void require_same_bits(const VariableState& variable, const std::vector<at::Tensor>& values, bool for_each_replica) {
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (same_bits(values.front(), values[i])) continue;
    const int64_t first = variable.group()->first_replica();
    throw DivergenceError(
        "LS-DIVERGED",
        fmt::format("update of variable '{}', which is on-write, left {} {} different from {}", variable.name(),
                    for_each_replica ? "replica" : "copy",
                    for_each_replica ? first + static_cast<int64_t>(i) : static_cast<int64_t>(i),
                    for_each_replica ? first : 0),
        "give every replica the same: reduce() what differs first, or take one replica's with update_from(); nothing "
        "was changed");
  }
}

}  // namespace

UpdateScope::UpdateScope(const VariableState& variable, int64_t replica, at::Tensor& value)
    : variable_(variable), replica_(replica), value_(value) {
  updating = this;
}

UpdateScope::~UpdateScope() { updating = nullptr; }

const UpdateScope* UpdateScope::current() { return updating; }

void UpdateScope::require_none(const char* call) {
  if (!updating) return;
  throw UsageError("LS-NESTED-CALL",
                   fmt::format("{} was called inside an update of variable '{}'", call, updating->variable().name()),
                   "call it before or after the update, whose function is called once for each copy");
}

const UpdateScope* UpdateScope::of(const VariableState& variable) {
  return updating && &updating->variable() == &variable ? updating : nullptr;
}

void update(VariableState& variable, bool for_each_replica, FunctionRef<void(at::Tensor&, int64_t)> fn) {
  if (const UpdateScope* outer = UpdateScope::current()) {
    throw UsageError("LS-NESTED-CALL",
                     fmt::format("update of variable '{}' was called inside an update of variable '{}'",
                                 variable.name(), outer->variable().name()),
                     "let the outer update end first: updates do not nest");
  }
  const ComputeSettingsGuard settings(variable.group()->plan().compute);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  ValueDigests digests(*variable.group());
  const auto compute = [&](Proposal& mine) {
    values = values_to_change(variable, for_each_replica);
    for (std::size_t i = 0; i < values.size(); ++i) {
      {
        const WorkScope work(variable.group()->rounds(), WorkerPhase::Kind::kFunction, variable.group()->step());
        const UpdateScope scope(variable, static_cast<int64_t>(i), values[i]);
        fn(values[i], static_cast<int64_t>(i));
      }
      values[i] = value_for(variable, values[i], "update");
    }
    if (!variable.on_write()) return;
    require_same_bits(variable, values, for_each_replica);
    digests.add(variable.name(), values.front());
    digests.fill_in(mine);
  };
  const auto all =
      agree_on_call(variable.group()->rounds(),
                    {.call = "Strategy::update", .name = variable.name(), .step = variable.group()->step()}, compute);
  digests.require_equal(all, "Strategy::update");
  if (!variable.on_write()) {
    copy_overwritten(values, variable);  // the function may have set its argument to a component
    for (int64_t r = 0; r < variable.num_components(); ++r) {
      variable.as_on_read().write_component(r, values[static_cast<std::size_t>(r)]);
    }
    return;
  }
  variable.write(values.front());
}

}  // namespace lockstep::internal::variable
