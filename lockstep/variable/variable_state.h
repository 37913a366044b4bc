// What stands behind a Variable: its components, how they may be written, and how foreign writes are noticed.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/variable/variable.h"

namespace lockstep::internal {

class ReplicaGroup;

/// One variable. Its members are called outside of steps, or while all replicas are at rest in a meeting, except for
/// those that name another rule.
///
/// An on-write variable has one or more copies in memory; several replicas' components may be the same copy, each under
/// a tensor of its own, with its own gradient and version counter. The variable remembers each tensor's version and
/// address and a checksum of each block of each copy, all as the library last left them: what differs later was written
/// by somebody else. An on-read variable's components are its replicas' own affair.
class VariableState {
 public:
  /// Whether foreign writes to an on-write variable are looked for. Optimizer slots go without: nobody is given them.
  enum class Watch { kWrites, kNothing };

  /// `components[r]` is local replica r's tensor; those of an on-write variable with the same storage are one copy.
  VariableState(std::shared_ptr<ReplicaGroup> group, VariableOptions options, std::vector<at::Tensor> components,
                Watch watch = Watch::kWrites);
  ~VariableState();

  const VariableOptions& options() const { return options_; }
  const std::string& name() const { return options_.name; }
  bool on_write() const { return options_.synchronization == VariableSynchronization::kOnWrite; }
  const std::shared_ptr<ReplicaGroup>& group() const { return group_; }
  /// As created: a component may have been changed by somebody else since.
  const at::Tensor& like() const { return like_; }
  int64_t bytes() const { return like_.numel() * static_cast<int64_t>(like_.element_size()); }

  /// Local replica r's tensor. Any thread.
  const at::Tensor& component(int64_t r) const { return components_[r]; }
  int64_t num_components() const { return static_cast<int64_t>(components_.size()); }
  /// The memories of an on-write variable.
  const std::vector<at::Tensor>& copies() const { return copies_; }

  /// The value; see Variable::read.
  at::Tensor read() const;
  /// Sets every copy of an on-write variable and takes damage back.
  void write(const at::Tensor& value);
  /// Sets one component of an on-read variable.
  void write_component(int64_t r, const at::Tensor& value) const;

  /// Throws the DivergenceError of a damaged variable. Any thread.
  void require_sound() const {
    if (damaged_.load(std::memory_order_acquire)) throw_damaged();
  }
  /// Whether component r is as the library left it, as far as its version and address tell: call from replica r's
  /// thread. Where not, marks the variable and throws its DivergenceError.
  void check_component(int64_t r);
  /// Compares every copy's checksums. Where they differ, marks the variable and throws.
  void check_memory();
  /// Marks the variable as damaged by a write found in its memory, by its checksum. Any thread.
  void damaged_in_memory();

  /// The checksums of one copy, a word for each block. The fused update compares and renews them in its own pass.
  uint64_t* checksums(std::size_t copy) { return checksums_[copy].data(); }
  /// After the library wrote the copies through pointers and renewed the checksums: component r's version counter
  /// moves, so that a backward through a graph recorded before fails. Call from replica r's thread, or while it is at
  /// rest.
  void updated_component(int64_t r) {
    components_[r].unsafeGetTensorImpl()->bump_version();
    if (watched_) ++expected_[r].version;  // check_component has found it as expected in this step
  }

 private:
  struct Expected {
    uint32_t version;
    const void* address;
  };
  /// Takes component r, as it is, for what the library left.
  void expect(int64_t r);
  void renew_checksums();
  void mark_damaged(const std::string& cause);
  [[noreturn]] void throw_damaged() const;

  const std::shared_ptr<ReplicaGroup> group_;
  const VariableOptions options_;
  const bool watched_;
  std::vector<at::Tensor> components_;
  at::Tensor like_;
  // Of an on-write variable only:
  std::vector<at::Tensor> copies_;
  std::vector<std::size_t> copy_of_;  // each component's copy
  std::vector<Expected> expected_;    // each component's; its replica's thread, or all at rest
  std::vector<std::vector<uint64_t>> checksums_;
  std::atomic<bool> damaged_{false};
  mutable std::mutex damage_mutex_;
  std::string damage_;  // guarded by damage_mutex_
};

/// Throws a UsageError, naming the variable, where `value` has not its shape or is not dense.
void check_value(const VariableState& variable, const at::Tensor& value, const char* call);

/// Whether two tensors of one shape and dtype have the same bits, NaN included.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::internal
