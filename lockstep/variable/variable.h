// A value of which every replica has a component: mirrored (equal on all replicas) or sync-on-read (each replica writes
// its own component, and a read aggregates them).
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>

#include <chrono>
#include <concepts>
#include <memory>
#include <string>

#include "lockstep/core/ids.h"
#include "lockstep/core/per_replica.h"
#include "lockstep/variable/worker_values.h"

namespace lockstep {

class ReplicaContext;

namespace internal::inline variable {
class VariableState;
}  // namespace internal::variable

/// When a variable's components are brought together.
enum class VariableSynchronization {
  kAuto,     // kOnWrite
  kOnWrite,  // components are equal at any time: a write reaches all
  kOnRead,   // each replica writes its own component; a read from outside aggregates them
};

/// How the values of several replicas become one: the values that they give to an assign of an on-write variable inside
/// a step, or the components of an on-read variable when it is read.
enum class VariableAggregation { kNone, kSum, kMean, kOnlyFirstReplica };

struct VariableOptions {
  std::string name = {};  // empty: "variable", "variable_1", ...
  bool trainable = true;  // collects gradients, where it is on-write and floating-point
  VariableSynchronization synchronization = VariableSynchronization::kAuto;
  VariableAggregation aggregation = VariableAggregation::kNone;
  std::chrono::milliseconds limit = {};  // how long others wait for a function's value; 0: WorkerTimeouts::work
};

/// A handle. Its copies mean the same variable, which lives as long as any copy and may outlive its strategy.
///
/// Calls without a context are made outside of steps, on one thread at a time, and mean all replicas of all workers;
/// inside a step they are a UsageError. Calls with a context are made inside a step, on its replica's thread. Inside
/// Strategy::update of this variable, calls without a context mean the component that is being updated; a write to
/// another variable is a UsageError there. docs/variables.md has the whole matrix.
///
/// A given tensor has the variable's shape; its dtype is converted, with a UsageError where that loses more than
/// precision: a fraction, an imaginary part. Once a foreign write to an on-write variable was found, every use of the
/// variable throws the same DivergenceError until it is assigned.
class Variable {
 public:
  /// An empty handle: every use but defined() is a UsageError.
  Variable() = default;

  bool defined() const { return state_ != nullptr; }
  const std::string& name() const;
  c10::IntArrayRef sizes() const;
  at::ScalarType dtype() const;
  bool trainable() const;
  VariableSynchronization synchronization() const;  // never kAuto
  VariableAggregation aggregation() const;

  /// A copy of the value. On-read: the aggregate of all components (kMean: components with equal bits give those bits,
  /// others are summed in float64 and rounded once); with kNone a UsageError, as there is no single value.
  at::Tensor read() const;
  /// Each local replica's component, a copy.
  PerReplica<at::Tensor> components() const;

  /// Sets, adds to or subtracts from the value, everywhere at once. On-read with kSum: changes replica 0's component,
  /// and assign() sets the others to (negative) zero, so that a read gives the same bits back for any number of
  /// replicas. On-read with another aggregation: changes every component.
  void assign(const at::Tensor& value) const;
  void assign_add(const at::Tensor& value) const;
  void assign_sub(const at::Tensor& value) const;
  /// The same with one value for each replica of this process. On-read: each component gets its own. On-write: a
  /// DivergenceError unless all have the same bits.
  void assign(const PerReplica<at::Tensor>& values) const;
  void assign_add(const PerReplica<at::Tensor>& values) const;
  void assign_sub(const PerReplica<at::Tensor>& values) const;

  /// In a scheduled step (WorkerContext): the value as this step sees it, its own changes included; a trainable one
  /// collects a gradient, which push() takes. A change counts with the step, or not at all.
  template <std::derived_from<internal::WorkerValues> Context>
  at::Tensor value(Context& context) const {
    return static_cast<internal::WorkerValues&>(context).value_of(*this);
  }
  template <std::derived_from<internal::WorkerValues> Context>
  void assign(Context& context, const at::Tensor& value) const {
    static_cast<internal::WorkerValues&>(context).change(*this, internal::WorkerValues::Change::kAssign, value);
  }
  template <std::derived_from<internal::WorkerValues> Context>
  void assign_add(Context& context, const at::Tensor& value) const {
    static_cast<internal::WorkerValues&>(context).change(*this, internal::WorkerValues::Change::kAdd, value);
  }
  template <std::derived_from<internal::WorkerValues> Context>
  void assign_sub(Context& context, const at::Tensor& value) const {
    static_cast<internal::WorkerValues&>(context).change(*this, internal::WorkerValues::Change::kSubtract, value);
  }

  /// This replica's component itself, not a copy. Of an on-write variable it is read-only, like a module's parameter.
  at::Tensor value(const ReplicaContext& context) const;
  /// On-read: changes this replica's component only. On-write: the replicas meet, and the variable is set to, or
  /// changed by, the aggregate of their values; with kNone a UsageError, as the values cannot become one.
  void assign(const ReplicaContext& context, const at::Tensor& value) const;
  void assign_add(const ReplicaContext& context, const at::Tensor& value) const;
  void assign_sub(const ReplicaContext& context, const at::Tensor& value) const;

  /// For the library's own use.
  explicit Variable(std::shared_ptr<internal::VariableState> state) : state_(std::move(state)) {}
  internal::VariableState& state() const;
  const std::shared_ptr<internal::VariableState>& shared_state() const { return state_; }

 private:
  std::shared_ptr<internal::VariableState> state_;
};

}  // namespace lockstep
