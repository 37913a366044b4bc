// The buffers of a strategy's modules where replicas may have moved them apart: what they become after a run, and which
// values an evaluation has.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/variable/module/buffers.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline variable {

class ModuleBinding;
class OnReadState;

/// Throws the DivergenceError of the first buffer of which replicas have different values. A call of all workers.
void require_equal_on_replicas(const ReplicaGroup& group, std::span<const OnReadState* const> buffers);

/// Values that all replicas have for the length of an evaluation, in place of their own.
class LentBuffers {
 public:
  LentBuffers() = default;
  explicit LentBuffers(std::vector<std::pair<OnReadState*, at::Tensor>> values) : values_(std::move(values)) {}

  /// Gives local replica r the values: on its thread, after its run has begun.
  void give(int64_t r) const;
  /// Gives it back its own where the evaluation has left what was given. Where the evaluation fails, its undoing does
  /// that.
  void take_back(int64_t r) const;

 private:
  std::vector<std::pair<OnReadState*, at::Tensor>> values_;
};

/// Used by its strategy, outside of steps or while all replicas are at rest. With several workers all of them call each
/// function.
class ModuleBuffers {
 public:
  using Modules = std::vector<std::shared_ptr<ModuleBinding>>;

  explicit ModuleBuffers(std::shared_ptr<ReplicaGroup> group) : group_(std::move(group)) {}

  /// A module was made.
  void note(const ModuleBinding& module);

  /// At the end of a run that succeeded so far, an evaluation or not: lets each buffer become what its module's Buffers
  /// say. In some runs it looks whether buffers with kAuto have come apart, which is a finding. Throws before it
  /// writes.
  void settle(const Modules& modules, bool evaluates);

  /// What an evaluation has instead of buffers that differ between replicas: the values that a read gives. A buffer of
  /// which replicas have different shapes stays as it is.
  LentBuffers lend(const Modules& modules) const;

 private:
  void tell(const Modules& modules, const std::vector<std::pair<const OnReadState*, int64_t>>& apart);

  const std::shared_ptr<ReplicaGroup> group_;
  // Of any module that was ever made, so that all workers have the same, whichever handles are left where.
  bool has_buffers_ = false;
  bool has_settled_ = false;
  bool has_auto_ = false;
  int64_t runs_ = 0;            // that were no evaluations
  std::set<std::string> told_;  // subjects of findings
};

}  // namespace lockstep::internal::variable
