// A snapshot of one on-read component, from which a failed run restores its memory, its layout and its values.
#pragma once

#include <ATen/core/TensorBody.h>

namespace lockstep::internal {

/// A copy of the whole stretch of memory in which a tensor lies, from its first element to its last. So elements that
/// share memory (an expanded tensor) are restored exactly, and so is what other tensors see in that memory.
///
/// Invariant: `shell_` has the tensor's own storage, so this memory lives, and cannot be given to another tensor, as
/// long as the snapshot does.
class ComponentSnapshot {
 public:
  /// Takes the snapshot. It has no values of a tensor that is not in the host's memory.
  void take(const at::Tensor& tensor);
  bool taken() const { return shell_.defined(); }
  /// Gives the tensor its memory, layout and values back.
  void put_back(at::Tensor& tensor) const;

 private:
  at::Tensor shell_;  // the tensor's memory under its layout
  at::Tensor bytes_;  // undefined where there are no values to copy
};

}  // namespace lockstep::internal
