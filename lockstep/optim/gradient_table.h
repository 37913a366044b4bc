// From backward to pointers: where every replica's gradient of every variable lies.
// Walk: the user's step function -> here -> optim/optimizer_state.cpp
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/reduce/leaf.h"
#include "lockstep/variable/component_table.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

class ReplicaGroup;

/// The gradients of one step for a fixed list of variables. Inside a process nothing is copied into buckets: whoever
/// adds reads the replicas' own tensors.
class GradientTable {
 public:
  GradientTable(std::vector<std::shared_ptr<VariableState>> variables, int64_t replicas);

  /// Notes local replica r's gradients; call from its thread. Where `weightless`, what the replica has counts as zero;
  /// where `had_empty_part`, it is no news that it has none. Throws a UsageError, naming the variable, for a sparse
  /// gradient and for one of another shape, dtype or device, and the DivergenceError of a variable that something else
  /// wrote.
  void collect(int64_t r, bool weightless, bool had_empty_part);
  /// Looks at what is absent, all collected and at rest: names in the log, once each, variables that require a gradient
  /// and have none. Throws a UsageError, naming the variable, for one that some replicas froze and others did not.
  void check_absent();
  /// Lets go of local replica r's gradient of variable i: afterwards its .grad() is undefined, so that the next
  /// backward takes over the memory of what it computes instead of adding. Call from r's thread, or while it is at
  /// rest.
  void release(std::size_t i, int64_t r) {
    components_.component(i, r).tensor.unsafeGetTensorImpl()->mutable_grad() = at::Tensor();
  }
  /// Lets go of what collect() had to copy. Likewise.
  void release_converted(int64_t r) { converted_[r].clear(); }

  // Where a reducer of the strategy's own adds: what is to be added is then its sum alone. All collected, all at rest,
  // but for reduce(), which is called for several variables at a time.
  void begin_reduce();
  void reduce(std::size_t i, const ReplicaGroup& group);
  void end_reduce() { reduced_.clear(); }

  /// The variables' components.
  const ComponentTable& components() const { return components_; }

  /// What is still to be added for variable i, as local replica r's: its gradient, or the sum that a reducer of the
  /// strategy's own has made, which stands as replica 0's. Absent: nothing, or zero. All collected.
  Leaf leaf(std::size_t i, int64_t r) const {
    return Leaf((reduced_.empty() ? pointers_ : reduced_pointers_)[slot(i, r)]);
  }
  /// Local replica r's own gradient of variable i; null: none, or zero.
  const void* gradient(std::size_t i, int64_t r) const { return pointers_[slot(i, r)]; }
  /// Whether any replica has a gradient of variable i, be it zero. Without one a variable is left untouched.
  bool present(std::size_t i) const { return is_here(i) || (!elsewhere_.empty() && elsewhere_[i] != 0); }
  /// With several workers: asks them of which variables their replicas have gradients. All workers at rest here.
  void agree_on_presence(const ReplicaGroup& group);
  /// The local replicas whose gradients of variable i are not finite everywhere, for a message. All collected.
  std::vector<int64_t> replicas_not_finite(std::size_t i) const;
  /// Whether the sum over replicas is finite everywhere. All collected, and reduced where a reducer adds.
  bool sum_is_finite(std::size_t i, const ReplicaGroup& group) const;

 private:
  /// Whether a local replica has a gradient of variable i.
  bool is_here(std::size_t i) const;
  /// What collect() found out about the gradients that a replica has not.
  struct alignas(64) Absent {
    uint64_t frozen = 0;  // a digest of the variables that require none
    bool is_news = false;
    bool had_empty_part = false;
  };
  /// By replica, then variable: replicas collect side by side.
  std::size_t slot(std::size_t i, int64_t r) const { return static_cast<std::size_t>(r) * variables_.size() + i; }
  void check_frozen_alike() const;
  std::vector<int64_t> replicas_without(std::size_t i) const;
  at::Tensor tensor_at(const void* gradient, std::size_t i) const;
  /// The sum over replicas, added in `type`.
  at::Tensor sum(std::size_t i, const ReplicaGroup& group, at::ScalarType type) const;

  const std::vector<std::shared_ptr<VariableState>> variables_;
  ComponentTable components_;  // of variables_
  const int64_t replicas_;
  std::vector<const void*> pointers_;               // by slot
  std::vector<char> has_;                           // by slot; not bool, since replicas write side by side
  std::vector<std::vector<at::Tensor>> converted_;  // by replica: gradients that had another memory layout
  std::vector<char> elsewhere_;                     // by variable: whether a replica of any worker has a gradient
  std::vector<at::Tensor> reduced_;                 // by variable, where a reducer adds; empty: it is in tree order
  std::vector<const void*> reduced_pointers_;       // as pointers_: the sum stands as replica 0's
  std::vector<Absent> absent_;                      // by replica
  std::vector<char> named_;                         // by variable: whether the log has named it; changed at rest
};

}  // namespace lockstep::internal
