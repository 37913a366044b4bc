// From backward to leaves: each replica's gradient of each variable, in memory, as factors or as rows.
// Walk: the user's step function -> here -> optim/optimizer_step.cpp
#pragma once

#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/gradient/gradients_on_workers.h"
#include "lockstep/gradient/sparse_support.h"
#include "lockstep/reduce/leaf.h"
#include "lockstep/reduce/rows.h"
#include "lockstep/variable/kinds/component_table.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline gradient {

/// The gradients of one step for a fixed list of variables. Inside a process nothing is copied into buckets: the sum
/// reads the replicas' own tensors.
///
/// Invariant: from collect(r) to release(i, r), a leaf of replica r that is present has dense elements in the
/// variable's own dtype and strides, which the replica's .grad(), `converted_` or `factors_` keeps alive. After that,
/// no leaf of replica r is read before the next collect(r) has set it.
///
/// A sparse gradient is kept as rows, and its leaf is absent, where the rule has an update of rows alone and every
/// gradient of the variable in this step is sparse, on all replicas of all workers. Otherwise it is written to memory.
class GradientTable {
 public:
  /// `sparse` says of a variable what its rule, with its present settings, does with sparse gradients.
  GradientTable(std::vector<std::shared_ptr<VariableState>> variables, int64_t replicas,
                std::function<SparseSupport(std::size_t)> sparse);

  /// Notes where local replica r's gradients lie; call from its thread. Where `weightless`, the replica's gradients
  /// count as zero. Where `had_empty_part`, its absent gradients are expected and not logged. Throws a UsageError that
  /// names the variable for a sparse gradient that its rule does not take and for one of another shape, dtype or
  /// device, and a DivergenceError for a variable with a foreign write.
  void collect(int64_t r, bool weightless, bool had_empty_part);
  /// Call when all replicas have collected and are at rest. Throws a UsageError that names the variable where some
  /// replicas froze it and others did not, on this worker or on another. Where `across_workers`, workers tell each
  /// other which gradients their replicas have, and `report`; what one of them throws is a PeerError on the others.
  void agree_on_presence(const ReplicaGroup& group, bool across_workers, std::string_view report);
  /// Logs, once each, the variables that require a gradient and have none. Call after agree_on_presence().
  void log_absent();
  /// Drops local replica r's gradient of variable i. Afterwards its .grad() is undefined, so that the next backward
  /// stores its own tensor there instead of adding to this one. Call from replica r's thread, or while replica r is at
  /// rest.
  void release(std::size_t i, int64_t r) {
    components_.component(i, r).tensor.unsafeGetTensorImpl()->mutable_grad() = at::Tensor();
  }
  /// Drops what collect() had to keep beside .grad(). Call as release().
  void release_kept(int64_t r) {
    converted_[r].clear();
    factors_[r].clear();
    rows_[r].clear();
  }

  // For a strategy's own reducer, and for several workers: what the update adds is made before it. Call when all have
  // collected and are at rest; lanes may call reduce() for different variables at a time.

  /// The update adds leaves of `replicas` replicas, which are absent until they are set.
  void begin_exchange(int64_t replicas);
  /// A leaf of variable i, which the caller keeps until end_exchange(). A sum of all replicas stands as that of the
  /// first.
  void set_leaf(std::size_t i, int64_t r, const Leaf& leaf) { exchanged_[slot(i, r)] = leaf; }
  /// Sets the leaf of variable i to what the strategy's reducer makes of all replicas' gradients. In tree order a sum
  /// of gradients in half precision stays float32, as it is in the update of one worker.
  void reduce(std::size_t i, const ReplicaGroup& group);
  /// Whether the elements of variable i's leaf are float32 though the variable's are in half precision.
  bool is_wide(std::size_t i) const {
    return !reduced_.empty() && reduced_[i].defined() && reduced_[i].scalar_type() != variables_[i]->number_type();
  }
  void end_exchange();

  /// The variables' components.
  const ComponentTable& components() const { return components_; }

  /// What the update still has to add for variable i on behalf of replica r: local replica r's gradient; or, between
  /// begin_exchange() and end_exchange(), the leaf that was set for replica r. Absent: no gradient, or one that counts
  /// as zero. Call when all have collected.
  Leaf leaf(std::size_t i, int64_t r) const { return exchanged_.empty() ? own_leaf(i, r) : exchanged_[slot(i, r)]; }
  /// Local replica r's gradient of variable i.
  Leaf own_leaf(std::size_t i, int64_t r) const { return leaves_[slot(i, r)]; }
  /// Whether any replica has a gradient of variable i, even one that counts as zero. A variable that has none on any
  /// replica is left unchanged.
  bool present(std::size_t i) const { return gradients(i) != Gradients::kNone; }
  /// Which gradients of variable i the replicas have: those of all workers, where agree_on_presence() has asked them.
  Gradients gradients(std::size_t i) const {
    return told_.gradients.empty() ? gradients_here(i) : told_.gradients[i].gradients;
  }
  /// Which gradients of variable i the local replicas have.
  Gradients gradients_here(std::size_t i) const;
  /// Whether any gradient of the local replicas, or of variable i, is kept as factors.
  bool has_factors() const {
    return std::any_of(factors_.begin(), factors_.end(), [](const auto& of_replica) { return !of_replica.empty(); });
  }
  bool has_factors(std::size_t i) const;
  /// Whether the gradients of this step, or of variable i, are kept as rows. Call after agree_on_presence().
  bool has_rows() const { return has_rows_; }
  bool in_rows(std::size_t i) const {
    return has_rows_ && (told_.gradients.empty() ? in_rows_here(i) : told_.gradients[i].in_rows);
  }
  /// Whether the local replicas have a gradient of variable i, and all that they have are sparse.
  bool in_rows_here(std::size_t i) const;
  /// Local replica r's rows of variable i, or null.
  std::shared_ptr<const Rows> own_rows(std::size_t i, int64_t r) const;
  /// What agree_on_presence() was told of all workers.
  const ToldOfGradients& told() const { return told_; }
  /// Whether local replica r's gradient of variable i is finite everywhere; true where it has none. Looks at
  /// replica r's gradients alone, because other lanes may be releasing theirs. Call after agree_on_presence(), and
  /// before the release of r's gradients.
  bool is_finite(std::size_t i, int64_t r) const;
  /// For a message: the local replicas whose gradient of variable i is not finite everywhere. Call when all have
  /// collected.
  std::vector<int64_t> replicas_not_finite(std::size_t i) const;
  /// Whether the sum over replicas is finite everywhere. Call when all have collected, and with all leaves set where
  /// begin_exchange() was called.
  bool sum_is_finite(std::size_t i, const ReplicaGroup& group) const;
  /// Whether elements [offset, offset + count), in the order of memory, of the sum of all leaves are finite. Call
  /// between begin_exchange() and end_exchange(), with all leaves set; a leaf needs to have these elements alone.
  bool sum_is_finite(std::size_t i, int64_t offset, int64_t count) const;

 private:
  /// What collect() found out about the gradients that a replica does not have.
  struct alignas(64) Absent {
    uint64_t frozen = 0;       // a digest of the variables that require none
    bool is_unlogged = false;  // a gradient is absent that the log has not named yet
    bool had_empty_part = false;
  };
  /// By replica, then variable: replicas collect at the same time, each into adjacent slots.
  std::size_t slot(std::size_t i, int64_t r) const { return static_cast<std::size_t>(r) * variables_.size() + i; }
  void check_frozen() const;
  /// Keeps a sparse gradient as rows, or writes it.
  void collect_sparse(std::size_t i, int64_t r, const at::Tensor& gradient, bool weightless);
  /// Makes a copy in the variable's layout the leaf.
  void keep_copy(std::size_t i, int64_t r, const at::Tensor& gradient);
  /// Writes what was kept as rows of variables whose other gradients are not.
  void write_other_rows();
  std::vector<int64_t> replicas_without(std::size_t i) const;
  /// A present leaf of variable i as a tensor.
  at::Tensor tensor_of(const Leaf& leaf, std::size_t i) const;
  /// The sum over replicas, added in `type`.
  at::Tensor sum(std::size_t i, const ReplicaGroup& group, at::ScalarType type) const;

  const std::vector<std::shared_ptr<VariableState>> variables_;
  ComponentTable components_;  // of variables_
  const int64_t replicas_;
  std::vector<Leaf> leaves_;                        // by slot: the gradient; absent: none, or it counts as zero
  std::vector<char> has_;                           // by slot; not bool, since replicas write side by side
  std::vector<std::vector<at::Tensor>> converted_;  // by replica: gradients that had another memory layout
  std::vector<std::vector<std::shared_ptr<const Factors>>> factors_;  // by replica: gradients that are not written
  struct RowsOfVariable {
    std::size_t variable;
    std::shared_ptr<const Rows> rows;
  };
  std::vector<std::vector<RowsOfVariable>> rows_;  // by replica: its sparse gradients, ascending by variable
  bool has_rows_ = false;
  const std::function<SparseSupport(std::size_t)> sparse_;  // of a variable
  ToldOfGradients told_;
  std::vector<Leaf> exchanged_;      // by slot, between begin_exchange() and end_exchange(); else empty
  std::vector<at::Tensor> reduced_;  // by variable: what reduce() has made
  std::vector<Absent> absent_;       // by replica
  std::vector<char> named_;          // by variable: whether the log has named it; changed at rest
};

}  // namespace lockstep::internal::gradient
