// The memory behind a variable's components: its copies, which component lies in which copy, and their checksums.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/variable/kinds/host_halves.h"

namespace lockstep::internal::inline variable {

/// One or more copies of a value. Each copy has its own dense memory, and all have one layout. Several components may
/// lie in one copy.
///
/// Changed outside of steps, or while all replicas are at rest. Only the fused update changes bytes and checksums on
/// several lanes at a time, each block on one lane.
///
/// A value that an optimizer updates may lie in memory that all workers of the host map (host_halves.h). It gets there
/// by a step of the optimizer, which writes the new value into one half, and it goes on from half to half. Every other
/// write moves it to memory of this worker alone first, so that no two workers write the same bytes.
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
  /// How often memory was bound or moved, over all variables, steps of optimizers aside. Code that keeps pointers to
  /// copies looks them up again where this number has changed.
  static uint64_t bindings() { return bindings_.load(std::memory_order_relaxed); }

  /// The checksums of one copy, a word for each block, or null where the memory has none. The fused update compares and
  /// renews them in its own pass.
  uint64_t* checksums(std::size_t copy) {
    if (is_in_halves_) return (*halves_)[half_].checksums;
    return checksums_.empty() ? nullptr : checksums_[copy].data();
  }
  void renew_checksums();
  /// The first copy whose bytes are not as the library left them.
  std::optional<std::size_t> foreign_copy() const;

  // Memory that all workers of the host map; for a value with one copy that fills its storage.

  bool can_move_to_halves() const;
  bool has_halves() const { return halves_ != nullptr; }
  void give_halves(c10::intrusive_ptr<HostHalves> halves) { halves_ = std::move(halves); }
  /// Whether the value lies in a half.
  bool is_in_halves() const { return is_in_halves_; }
  /// The replicas of the host's workers, whose value lies in the halves. Only where has_halves().
  const std::vector<int64_t>& replicas_of_halves() const { return halves_->replicas(); }
  /// The half that the next step of an optimizer writes. Nobody reads it before move_to_next_half().
  const HostHalves::Half& next_half() const { return (*halves_)[1 - half_]; }
  /// From now on the value is what was written into next_half(). All tensors over the copy follow. Addresses that
  /// component.h records have to be renewed.
  void move_to_next_half() noexcept;
  /// Copies the value to memory of this worker alone, if it lies in a half, and says whether it did. The same then
  /// holds for addresses.
  bool leave_halves();

 private:
  const uint64_t* checksums(std::size_t copy) const { return const_cast<VariableMemory*>(this)->checksums(copy); }

  static inline std::atomic<uint64_t> bindings_{0};
  std::vector<at::Tensor> copies_;
  std::vector<std::size_t> copy_of_;              // by component
  std::vector<std::vector<uint64_t>> checksums_;  // by copy, then block; unused while the value lies in a half
  c10::intrusive_ptr<HostHalves> halves_;
  int half_ = 1;  // the half that a step has written last; the same on all workers, since all count the same steps
  bool is_in_halves_ = false;
};

}  // namespace lockstep::internal::variable
