// Rules of the program's own in an update. They may throw, so they write new values aside.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "lockstep/optim/update/bound_update.h"
#include "lockstep/optim/update/update_kernels.h"

namespace lockstep::internal::inline optim {

/// Order of events in a step: call() gives each rule copies of the old values, and the clipped gradients; where no rule
/// of any lane or worker has thrown, store() takes the new values from there. An elementwise rule is called for each
/// block, another one for the whole variable. Lanes call both side by side, with their numbers in this process; all
/// else is called while all replicas are at rest.
class OwnRules {
 public:
  explicit OwnRules(const BoundUpdate& update);

  /// Whether no target has such a rule.
  bool is_empty() const { return trials_.empty(); }
  /// Keeps what a rule throws, and, where `digests`, digests of what rules gave.
  void call(BoundUpdate& update, UpdateKernels& kernels, const UpdatePass& pass, int lane, bool digests);
  /// Throws what the first lane's rule has thrown in the last call().
  void require_no_error() const;
  /// A digest of the new values of target i that rules gave to the lanes of this process in the last call(), where it
  /// kept digests; otherwise 0. The sum of all processes' digests does not depend on how they divide the blocks.
  uint64_t digest(const BoundUpdate& update, std::size_t i) const;
  /// Takes the lane's new values; `place` as for UpdateKernels::store().
  void store(BoundUpdate& update, UpdateKernels& kernels, int lane, const PlaceOfBlock* place) const;

 private:
  /// New values of all elements of a variable, in the order of its memory.
  struct Trial {
    at::Tensor weights;
    std::vector<at::Tensor> slots;
    std::vector<void*> slot_memory;  // theirs
    RuleMemory memory(void* gradient) const { return {gradient, weights.data_ptr(), slot_memory}; }
  };
  struct alignas(64) Lane {
    std::vector<char> gradient;  // of one call
    std::exception_ptr error;
  };
  /// Calls visit(blocks) for the blocks of each call of a rule.
  template <class Visit>
  void for_each_call(const BoundUpdate& update, int lane, const Visit& visit) const;
  void call_one(BoundUpdate& update, UpdateKernels& kernels, const UpdatePass& pass, int lane, bool digests,
                const BlockRange& blocks);

  std::vector<std::optional<Trial>> trials_;  // by target; empty where no rule is the program's own
  std::vector<uint64_t> digests_;  // by block: of what a call that ends with it gave; as many as blocks, or none
  std::vector<Lane> lanes_;        // of this process
};

}  // namespace lockstep::internal::optim
