// The memory behind a variable's components: its copies, which component lies in which copy, and their checksums.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::internal {

/// One or more copies of a value. Each copy has its own dense memory, and all have one layout. Several components may
/// lie in one copy.
///
/// Changed outside of steps, or while all replicas are at rest. Only the fused update changes bytes and checksums on
/// several lanes at a time, each block on one lane.
///
/// Invariant: the checksum of a block is that of its bytes as the library last left them. Each write of the library
/// renews the checksums of the blocks that it wrote, so a difference is a foreign write.
class VariableMemory {
 public:
  VariableMemory() = default;
  /// `components[r]` is local replica r's tensor; components at one address form one copy. Without `has_checksums` the
  /// memory is not checked for foreign writes.
  VariableMemory(const std::vector<at::Tensor>& components, bool has_checksums);

  const std::vector<at::Tensor>& copies() const { return copies_; }
  /// The copy in which local replica r's component lies.
  const at::Tensor& copy_of(int64_t r) const { return copies_[copy_of_[static_cast<std::size_t>(r)]]; }
  /// The local replicas whose component lies in a copy.
  std::vector<int64_t> replicas_of(std::size_t copy) const;
  int64_t bytes() const { return static_cast<int64_t>(copies_.front().nbytes()); }

  /// Moves the values to other memory: one tensor for each copy, of its dtype, sizes and strides.
  void bind(std::vector<at::Tensor> copies);
  /// How often bind() was called, over all variables. Code that keeps pointers to copies looks them up again where this
  /// number has changed.
  static uint64_t bindings() { return bindings_.load(std::memory_order_relaxed); }

  /// The checksums of one copy, a word for each block, or null where the memory has none. The fused update compares and
  /// renews them in its own pass.
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
