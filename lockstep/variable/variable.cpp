// What a Variable does, cell by cell: (on-write, on-read) x (outside, inside a step, inside an update) x aggregation.
#include "lockstep/variable/variable.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/replica/step_recorder.h"
#include "lockstep/variable/kinds/on_read_state.h"
#include "lockstep/variable/kinds/written_memory.h"
#include "lockstep/variable/registry.h"
#include "lockstep/variable/update.h"
#include "lockstep/variable/value_digests.h"

namespace lockstep {

using internal::CallScope;
using internal::ComputeSettingsGuard;
using internal::ContextAccess;
using internal::UpdateScope;
using internal::ValueDigests;
using internal::VariableState;
using internal::Workers;

namespace {

enum class Write { kAssign, kAdd, kSub };

const char* name_of(Write write) {
  switch (write) {
    case Write::kAssign: return "assign";
    case Write::kAdd: return "assign_add";
    case Write::kSub: return "assign_sub";
  }
  return "";
}

at::Tensor applied(const VariableState& variable, Write write, const at::Tensor& now, const at::Tensor& value) {
  if (write == Write::kAssign) return value;
  if (!internal::can_be_added(now.scalar_type())) {
    throw UsageError("LS-DTYPE",
                     fmt::format("{} of variable '{}' of {} was asked for", name_of(write), variable.name(),
                                 c10::toString(now.scalar_type())),
                     "assign() it, or give it a dtype that can be added");
  }
  if (now.sizes() != value.sizes()) {  // a component that grew; see misfit
    throw UsageError("LS-SHAPE",
                     fmt::format("{} of variable '{}', which has shape [{}] now, was given [{}]", name_of(write),
                                 variable.name(), fmt::join(now.sizes(), ", "), fmt::join(value.sizes(), ", ")),
                     "give a tensor of the shape that components() have");
  }
  return write == Write::kAdd ? at::add(now, value) : at::sub(now, value);
}

/// The scope of every call outside of steps. Only one such call runs at a time, and it computes under the strategy's
/// denormal mode and number of threads, whatever the caller's are.
class OutsideCall {
 public:
  OutsideCall(const VariableState& variable, const char* call, const char* inside, Workers workers = Workers::kAll)
      : call_(*variable.group(), call, inside, workers, variable.name()), settings_(variable.group()->plan().compute) {}

  bool is_agreed() const { return call_.is_agreed(); }

 private:
  const CallScope call_;
  const ComputeSettingsGuard settings_;
};

/// Call before a write that reads the present value: a foreign write must not become part of the new value.
void check_before_change(VariableState& variable, Write write) {
  if (write == Write::kAssign) return;
  variable.require_whole(name_of(write));
  variable.check_memory();
}

/// The index of the context's local replica. Throws a UsageError where the context belongs to another strategy or is
/// not valid here.
int64_t local_index(const VariableState& variable, const ReplicaContext& context, const char* call) {
  ContextAccess::check_is_current(context, call);
  if (&ContextAccess::group(context) != variable.group().get()) {
    throw UsageError("LS-OTHER-STRATEGY",
                     fmt::format("{} of variable '{}' was given a context of another strategy", call, variable.name()),
                     "use a variable in steps of the strategy that made it");
  }
  return ContextAccess::local_index(context);
}

/// A write inside of Strategy::update: to the component that is being updated.
void write_inside_update(const UpdateScope& update, const VariableState& variable, Write write,
                         const at::Tensor& value) {
  if (&update.variable() != &variable) {
    throw UsageError("LS-NESTED-CALL",
                     fmt::format("{} of variable '{}' was called inside an update of variable '{}'", name_of(write),
                                 variable.name(), update.variable().name()),
                     "write other variables before or after the update, whose function is called once for each copy");
  }
  internal::WrittenMemory written;
  written.add(update.value());
  update.value().copy_(written.copied_if_inside(applied(variable, write, update.value(), value)));
}

/// A write from outside of any step; `value` has the variable's dtype and shape.
void write_outside(VariableState& variable, Write write, const at::Tensor& value) {
  if (const UpdateScope* update = UpdateScope::current()) return write_inside_update(*update, variable, write, value);
  if (variable.on_write()) {
    check_before_change(variable, write);
    variable.write(applied(variable, write, variable.copies().front(), value));
    return;
  }
  const at::Tensor source = internal::WrittenMemory(variable).copied_if_inside(value);
  // The components of a sum add up to the value: replica 0 of the whole run holds it, and all others hold nothing.
  const bool sum = variable.options().aggregation == VariableAggregation::kSum;
  for (int64_t r = 0; r < variable.num_components(); ++r) {
    const at::Tensor now = internal::plain(variable.component(r));
    if (!sum || variable.group()->first_replica() + r == 0) {
      variable.as_on_read().write_component(r, applied(variable, write, now, source));
    } else if (write == Write::kAssign) {
      at::Tensor nothing = at::empty_like(source);
      internal::fill_with_additive_identity(nothing);
      variable.as_on_read().write_component(r, nothing);
    }
  }
}

/// `value` as the variable can hold it, which all workers must give alike.
at::Tensor fitting(VariableState& variable, Write write, const at::Tensor& value, ValueDigests* digests) {
  at::Tensor own = internal::value_for(variable, value, name_of(write));
  if (digests) digests->add(variable.name(), own);
  return own;
}

/// The same with a value for each local replica. An on-write variable gets one value, which all replicas have given.
std::vector<at::Tensor> fitting(VariableState& variable, Write write, const PerReplica<at::Tensor>& given,
                                ValueDigests* digests) {
  if (static_cast<int64_t>(given.size()) != variable.num_components()) {
    throw UsageError("LS-PER-REPLICA-SIZE",
                     fmt::format("{} of variable '{}' was given {} for {}", name_of(write), variable.name(),
                                 internal::counted(static_cast<int64_t>(given.size()), "value"),
                                 internal::counted(variable.num_components(), "replica")),
                     "give one value for each replica of this process");
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& value : given) values.push_back(internal::value_for(variable, value, name_of(write)));
  if (variable.on_write()) {
    for (std::size_t r = 1; r < values.size(); ++r) {
      if (internal::same_bits(values.front(), values[r])) continue;
      const ReplicaId first = variable.group()->first_replica();
      throw DivergenceError(
          "LS-DIVERGED",
          fmt::format("{} of variable '{}' was given different values for replicas {} and {}, and it is on-write: its "
                      "components are equal at any time",
                      name_of(write), variable.name(), first.value(), first + static_cast<int64_t>(r)),
          "reduce the values first, or use strategy.update_from to take one replica's");
    }
    if (digests) digests->add(variable.name(), values.front());
    values.resize(1);
  }
  return values;
}

void write_outside(VariableState& variable, Write write, std::vector<at::Tensor> values) {
  if (variable.on_write()) {
    write_outside(variable, write, values.front());
  } else if (const UpdateScope* update = UpdateScope::current()) {
    write_inside_update(*update, variable, write, values[static_cast<std::size_t>(update->replica())]);
  } else {
    internal::copy_overwritten(values, variable);
    for (int64_t r = 0; r < variable.num_components(); ++r) {
      variable.as_on_read().write_component(
          r, applied(variable, write, internal::plain(variable.component(r)), values[static_cast<std::size_t>(r)]));
    }
  }
}

/// What Variable's calls without a context have in common; `Value` is a tensor or a PerReplica of them.
template <class Value>
void write_outside_of_steps(VariableState& variable, Write write, const Value& value) {
  const std::string call = fmt::format("Variable::{}", name_of(write));
  const std::string inside = fmt::format("use {}(ctx, value)", name_of(write));
  // An update calls its function once for each copy or replica, of which each worker may have another number.
  const Workers workers = UpdateScope::current() ? Workers::kThis : Workers::kAll;
  const OutsideCall scope(variable, call.c_str(), inside.c_str(), workers);
  const at::NoGradGuard no_grad;
  // Inside another call, that call's own agreement covers the value, or the next verification does.
  if (!scope.is_agreed()) return write_outside(variable, write, fitting(variable, write, value, nullptr));
  internal::ReplicaGroup& group = *variable.group();
  ValueDigests digests(group);
  decltype(fitting(variable, write, value, nullptr)) values;
  const auto all = internal::agree_on_call(
      group.rounds(), {.call = call, .name = variable.name(), .step = group.step()}, [&](internal::Proposal& mine) {
        values = fitting(variable, write, value, &digests);
        if (variable.on_write()) check_before_change(variable, write);
        digests.fill_in(mine);
      });
  digests.require_equal(all, call.c_str());
  write_outside(variable, write, std::move(values));
}

/// A write of all replicas together, inside a step, to an on-write variable.
class AssignMeeting final : public internal::Meeting {
 public:
  AssignMeeting(VariableState& variable, Write write, const at::Tensor& value)
      : variable_(variable), write_(write), value_(value) {}

  const char* what() const override { return name_of(write_); }
  std::string_view name() const override { return variable_.name(); }
  std::string describe() const override { return fmt::format("{} of variable '{}'", what(), variable_.name()); }

  std::span<const internal::Stage> stages() const override {
    static constexpr internal::Stage all[] = {internal::once<&AssignMeeting::assign>("assign")};
    return all;
  }
  void assign(std::span<Meeting* const> all) {
    const at::NoGradGuard no_grad;
    at::Tensor given;
    if (variable_.options().aggregation == VariableAggregation::kOnlyFirstReplica) {
      given = variable_.group()->of_replica(0, value_);  // the leading meeting is the first local replica's
    } else {
      std::vector<at::Tensor> values;
      for (const Meeting* meeting : all) values.push_back(static_cast<const AssignMeeting*>(meeting)->value_);
      const bool mean = variable_.options().aggregation == VariableAggregation::kMean;
      given = variable_.group()->reduce(mean ? Reduction::kMean : Reduction::kSum, values);
    }
    check_before_change(variable_, write_);
    variable_.write(applied(variable_, write_, variable_.copies().front(), given));
  }

 private:
  VariableState& variable_;
  const Write write_;
  const at::Tensor value_;  // of the variable's dtype and shape
};

void write_inside(VariableState& variable, const ReplicaContext& context, Write write, const at::Tensor& value) {
  const int64_t r = local_index(variable, context, name_of(write));
  const at::NoGradGuard no_grad;
  const at::Tensor own = internal::value_for(variable, value, name_of(write));
  if (!variable.on_write()) {
    variable.as_on_read().write_component(r, applied(variable, write, internal::plain(variable.component(r)), own));
    return;
  }
  if (variable.options().aggregation == VariableAggregation::kNone) {
    throw UsageError(
        "LS-NO-AGGREGATION",
        fmt::format("{} of variable '{}' inside a step, by replica {}: it is on-write and has no aggregation, so "
                    "the replicas' values cannot become one",
                    name_of(write), variable.name(), context.replica_id().value()),
        "create it with .aggregation = kSum, kMean or kOnlyFirstReplica, or with .synchronization = kOnRead if "
        "each replica keeps its own");
  }
  if (write != Write::kAssign) variable.check_component(r);
  AssignMeeting meeting(variable, write, own);
  ContextAccess::group(context).meet(context, meeting);
}

/// The same, which a recorder of the step is told of.
void write_in_step(const std::shared_ptr<VariableState>& variable, const ReplicaContext& context, Write write,
                   const at::Tensor& value) {
  if (!internal::StepRecorder::current()) return write_inside(*variable, context, write, value);
  internal::RecordedCall call(fmt::format("{} of variable '{}'", name_of(write), variable->name()), {&value, 1},
                              [variable, write](const ReplicaContext& again, std::span<const at::Tensor> values) {
                                write_inside(*variable, again, write, values.front());
                                return std::vector<at::Tensor>();
                              });
  write_inside(*variable, context, write, value);
  call.end();
}

}  // namespace

VariableState& Variable::state() const {
  if (state_) return *state_;
  throw UsageError("LS-EMPTY-HANDLE", "an empty Variable was used",
                   "take one from make_variable or from a module's variables()");
}

const std::string& Variable::name() const { return state().name(); }
c10::IntArrayRef Variable::sizes() const { return state().like().sizes(); }
at::ScalarType Variable::dtype() const { return state().like().scalar_type(); }
bool Variable::trainable() const { return state().options().trainable; }
VariableSynchronization Variable::synchronization() const { return state().options().synchronization; }
VariableAggregation Variable::aggregation() const { return state().options().aggregation; }

at::Tensor Variable::read() const {
  VariableState& variable = state();
  if (const UpdateScope* update = UpdateScope::of(variable)) return update->value().detach().clone();
  const Workers workers = variable.on_write() ? Workers::kThis : Workers::kAll;
  const OutsideCall call(variable, "Variable::read", "use value(ctx)", workers);
  variable.check_memory();
  return variable.read();
}

PerReplica<at::Tensor> Variable::components() const {
  VariableState& variable = state();
  const OutsideCall call(variable, "Variable::components", "use value(ctx)", Workers::kThis);
  variable.check_memory();
  variable.require_whole("Variable::components");
  std::vector<at::Tensor> copies;
  for (int64_t r = 0; r < variable.num_components(); ++r) copies.push_back(variable.component(r).detach().clone());
  return PerReplica<at::Tensor>(std::move(copies), variable.group()->first_replica());
}

void Variable::assign(const at::Tensor& value) const { write_outside_of_steps(state(), Write::kAssign, value); }
void Variable::assign_add(const at::Tensor& value) const { write_outside_of_steps(state(), Write::kAdd, value); }
void Variable::assign_sub(const at::Tensor& value) const { write_outside_of_steps(state(), Write::kSub, value); }

void Variable::assign(const PerReplica<at::Tensor>& values) const {
  write_outside_of_steps(state(), Write::kAssign, values);
}

void Variable::assign_add(const PerReplica<at::Tensor>& values) const {
  write_outside_of_steps(state(), Write::kAdd, values);
}

void Variable::assign_sub(const PerReplica<at::Tensor>& values) const {
  write_outside_of_steps(state(), Write::kSub, values);
}

at::Tensor Variable::value(const ReplicaContext& context) const {
  const int64_t r = local_index(state(), context, "Variable::value");
  state().require_sound();
  state().require_whole("Variable::value");
  return state().component(r);
}

void Variable::assign(const ReplicaContext& context, const at::Tensor& value) const {
  state();
  write_in_step(state_, context, Write::kAssign, value);
}

void Variable::assign_add(const ReplicaContext& context, const at::Tensor& value) const {
  state();
  write_in_step(state_, context, Write::kAdd, value);
}

void Variable::assign_sub(const ReplicaContext& context, const at::Tensor& value) const {
  state();
  write_in_step(state_, context, Write::kSub, value);
}

}  // namespace lockstep
