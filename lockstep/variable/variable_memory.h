// The memory behind a variable's components: its copies, which component lies in which copy, and their checksums.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::internal {

/// One or more copies of a value, each in memory of its own, dense and of one layout. Several components may lie in one
/// copy. A checksum of each block says what the library last left there.
///
/// Changed outside of steps, or while all replicas are at rest; the fused update changes a copy's bytes and checksums,
/// each block by one lane.
class VariableMemory {
 public:
  VariableMemory() = default;
  /// `components[r]` is local replica r's tensor; those at one address are one copy. Without `has_checksums` nobody
  /// looks for foreign writes.
  VariableMemory(const std::vector<at::Tensor>& components, bool has_checksums);

  const std::vector<at::Tensor>& copies() const { return copies_; }
  /// The copy in which local replica r's component lies.
  const at::Tensor& copy_of(int64_t r) const { return copies_[copy_of_[static_cast<std::size_t>(r)]]; }
  /// The local replicas whose component lies in a copy.
  std::vector<int64_t> replicas_of(std::size_t copy) const;
  int64_t bytes() const { return static_cast<int64_t>(copies_.front().nbytes()); }

  /// Moves the values to other memory: one tensor for each copy, of its dtype, sizes and strides.
  void bind(std::vector<at::Tensor> copies);
  /// How often any variable's memory was bound anew. Whoever keeps pointers takes them again where this has changed.
  static uint64_t bindings() { return bindings_.load(std::memory_order_relaxed); }

  /// The checksums of one copy, a word for each block, or null where nobody looks. The fused update compares and renews
  /// them in its own pass.
  uint64_t* checksums(std::size_t copy) { return checksums_.empty() ? nullptr : checksums_[copy].data(); }
  void renew_checksums();
  /// The first copy whose bytes are not as the library left them.
  std::optional<std::size_t> foreign_copy() const;

 private:
  uint64_t checksum_of(std::size_t copy, std::size_t block) const;

  static inline std::atomic<uint64_t> bindings_{0};
  std::vector<at::Tensor> copies_;
  std::vector<std::size_t> copy_of_;              // by component
  std::vector<std::vector<uint64_t>> checksums_;  // by copy, then block
};

}  // namespace lockstep::internal
