// What a Variable does, cell by cell: (on-write, on-read) x (outside, inside a step) x aggregation.
#include "lockstep/variable/variable.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/reduce_tensors.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep {

using internal::CallScope;
using internal::ContextAccess;
using internal::VariableState;

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

at::Tensor applied(Write write, const at::Tensor& now, const at::Tensor& value) {
  if (write == Write::kAssign) return value;
  const at::Tensor operand = value.to(now.scalar_type());
  return write == Write::kAdd ? at::add(now, operand) : at::sub(now, operand);
}

/// Before a value is read to be changed: it must be the library's own.
void check_before_change(VariableState& variable, Write write) {
  if (write != Write::kAssign) variable.check_memory();
}

/// Throws the UsageError of a context of another strategy, or one that is not valid here.
int64_t local_index(const VariableState& variable, const ReplicaContext& context, const char* call) {
  ContextAccess::check_is_current(context, call);
  if (&ContextAccess::group(context) != variable.group().get()) {
    throw UsageError(fmt::format("{} of variable '{}' was given a context of another strategy", call, variable.name()),
                     "use a variable in steps of the strategy that made it");
  }
  return ContextAccess::local_index(context);
}

/// A write from outside of any step.
void write_outside(VariableState& variable, Write write, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  internal::check_value(variable, value, name_of(write));
  if (variable.on_write()) {
    check_before_change(variable, write);
    variable.write(applied(write, variable.copies().front(), value));
    return;
  }
  const bool sum = variable.options().aggregation == VariableAggregation::kSum;
  for (int64_t r = 0; r < variable.num_components(); ++r) {
    const at::Tensor now = variable.component(r).detach();
    if (!sum || variable.group()->first_replica() + r == 0) {
      variable.write_component(r, applied(write, now, value));
    } else if (write == Write::kAssign) {
      variable.write_component(r, at::zeros_like(now));
    }
  }
}

/// A write of all replicas together, inside a step, to an on-write variable.
class AssignMeeting final : public internal::Meeting {
 public:
  AssignMeeting(VariableState& variable, Write write, const at::Tensor& value)
      : variable_(variable), write_(write), value_(value.detach()) {}

  const char* what() const override { return name_of(write_); }
  uint64_t signature() const override {
    return reinterpret_cast<uintptr_t>(&variable_) * 8 +
           static_cast<uint64_t>(value_.scalar_type()) * 0x9e3779b97f4a7c15u;
  }
  std::string describe() const override {
    return fmt::format("{} of variable '{}' with {}", what(), variable_.name(), c10::toString(value_.scalar_type()));
  }

  void prepare(std::span<Meeting* const> all) override {
    const at::NoGradGuard no_grad;
    at::Tensor given = value_;
    if (variable_.options().aggregation != VariableAggregation::kOnlyFirstReplica) {
      std::vector<at::Tensor> values;
      for (const Meeting* meeting : all) values.push_back(static_cast<const AssignMeeting*>(meeting)->value_);
      const bool mean = variable_.options().aggregation == VariableAggregation::kMean;
      given = internal::reduce_tensors(mean ? Reduction::kMean : Reduction::kSum, values);
    }
    check_before_change(variable_, write_);
    variable_.write(applied(write_, variable_.copies().front(), given));
  }

 private:
  VariableState& variable_;
  const Write write_;
  const at::Tensor value_;
};

void write_inside(VariableState& variable, const ReplicaContext& context, Write write, const at::Tensor& value) {
  const int64_t r = local_index(variable, context, name_of(write));
  internal::check_value(variable, value, name_of(write));
  if (!variable.on_write()) {
    const at::NoGradGuard no_grad;
    variable.write_component(r, applied(write, variable.component(r).detach(), value));
    return;
  }
  if (variable.options().aggregation == VariableAggregation::kNone) {
    throw UsageError(
        fmt::format("{} of variable '{}' inside a step, by replica {}: it is on-write and has no aggregation, so "
                    "the replicas' values cannot become one",
                    name_of(write), variable.name(), context.replica_id().value()),
        "create it with .aggregation = kSum, kMean or kOnlyFirstReplica, or with .synchronization = kOnRead if "
        "each replica keeps its own");
  }
  if (write != Write::kAssign) variable.check_component(r);
  AssignMeeting meeting(variable, write, value);
  ContextAccess::group(context).meet(context, meeting);
}

}  // namespace

VariableState& Variable::state() const {
  if (state_) return *state_;
  throw UsageError("an empty Variable was used", "take one from make_variable or from a module's variables()");
}

const std::string& Variable::name() const { return state().name(); }
c10::IntArrayRef Variable::sizes() const { return state().like().sizes(); }
at::ScalarType Variable::dtype() const { return state().like().scalar_type(); }
bool Variable::trainable() const { return state().options().trainable; }
VariableSynchronization Variable::synchronization() const { return state().options().synchronization; }
VariableAggregation Variable::aggregation() const { return state().options().aggregation; }

at::Tensor Variable::read() const {
  const CallScope call(*state().group(), "Variable::read", "use value(ctx)");
  return state().read();
}

PerReplica<at::Tensor> Variable::components() const {
  const CallScope call(*state().group(), "Variable::components", "use value(ctx)");
  std::vector<at::Tensor> copies;
  for (int64_t r = 0; r < state().num_components(); ++r) {
    if (state().on_write()) state().require_sound();
    copies.push_back(state().component(r).detach().clone());
  }
  return PerReplica<at::Tensor>(std::move(copies), state().group()->first_replica());
}

void Variable::assign(const at::Tensor& value) const {
  const CallScope call(*state().group(), "Variable::assign", "use assign(ctx, value)");
  write_outside(state(), Write::kAssign, value);
}

void Variable::assign_add(const at::Tensor& value) const {
  const CallScope call(*state().group(), "Variable::assign_add", "use assign_add(ctx, value)");
  write_outside(state(), Write::kAdd, value);
}

void Variable::assign_sub(const at::Tensor& value) const {
  const CallScope call(*state().group(), "Variable::assign_sub", "use assign_sub(ctx, value)");
  write_outside(state(), Write::kSub, value);
}

void Variable::assign(const PerReplica<at::Tensor>& values) const {
  VariableState& variable = state();
  const CallScope call(*variable.group(), "Variable::assign", "use assign(ctx, value)");
  if (static_cast<int64_t>(values.size()) != variable.num_components()) {
    throw UsageError(fmt::format("assign of variable '{}' was given {} values for {} replicas", variable.name(),
                                 values.size(), variable.num_components()),
                     "give one value for each replica of this process");
  }
  for (const at::Tensor& value : values) internal::check_value(variable, value, "assign");
  if (!variable.on_write()) {
    for (int64_t r = 0; r < variable.num_components(); ++r) variable.write_component(r, *(values.begin() + r));
    return;
  }
  for (int64_t r = 1; r < variable.num_components(); ++r) {
    if (internal::same_bits(*values.begin(), *(values.begin() + r))) continue;
    throw DivergenceError(
        fmt::format("assign of variable '{}' was given different values for replicas {} and {}, and it is "
                    "on-write: its components are equal at any time",
                    variable.name(), values.first_replica().value(), values.first_replica() + r),
        "reduce the values first, or use strategy.update_from to take one replica's");
  }
  variable.write(*values.begin());
}

at::Tensor Variable::value(const ReplicaContext& context) const {
  const int64_t r = local_index(state(), context, "Variable::value");
  if (state().on_write()) state().require_sound();
  return state().component(r);
}

void Variable::assign(const ReplicaContext& context, const at::Tensor& value) const {
  write_inside(state(), context, Write::kAssign, value);
}

void Variable::assign_add(const ReplicaContext& context, const at::Tensor& value) const {
  write_inside(state(), context, Write::kAdd, value);
}

void Variable::assign_sub(const ReplicaContext& context, const at::Tensor& value) const {
  write_inside(state(), context, Write::kSub, value);
}

}  // namespace lockstep
