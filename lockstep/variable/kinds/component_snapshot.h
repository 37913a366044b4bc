// A snapshot of one on-read component, from which a failed run restores its memory, its layout and its values.
#pragma once

#include <ATen/core/TensorBody.h>

namespace lockstep::internal::inline variable {

/// A copy of all memory between a tensor's first element and its last. So elements that
/// share memory (an expanded tensor) are restored exactly, and so is what other tensors see in that memory.
///
/// Invariant: `shell_` has the tensor's own storage, so this memory lives, and cannot be given to another tensor, as
/// long as the snapshot does.
class ComponentSnapshot {
 public:
  /// Takes the snapshot. It has no values of a tensor that is not in the host's memory.
  void take(const at::Tensor& tensor);
  bool taken() const { return taken_; }
  /// The run is over: put_back() is not called before the next take(). The memory is kept for it.
  void expire() { taken_ = false; }
  /// Whether the tensor has the memory, layout and values of the snapshot.
  bool is_of(const at::Tensor& tensor) const;
  /// A copy of the values.
  at::Tensor values() const;
  /// Gives the tensor its memory, layout and values back.
  void put_back(at::Tensor& tensor) const;

 private:
  bool taken_ = false;
  at::Tensor shell_;  // the tensor's memory under its layout
  at::Tensor bytes_;  // undefined where there are no values to copy
};

}  // namespace lockstep::internal::variable
