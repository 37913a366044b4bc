// From one sum to new weights: adds the replicas' gradients and updates weights and slots in one pass over memory.
// Walk: optim/optimizer_state.cpp -> here -> reduce/tree_sum.inc
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/optim/gradient_table.h"
#include "lockstep/optim/update_block.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

/// A variable to update, and how.
struct UpdateTarget {
  std::shared_ptr<VariableState> variable;
  std::vector<std::shared_ptr<VariableState>> slots;
  UpdateKind kind;
};

/// The local replicas whose gradients are added, and whose components they update.
struct ReplicaRange {
  int64_t first;
  int64_t count;
};

/// Lanes call `measure` and `update` side by side, each for its share of blocks; everything else happens while all are
/// at rest. A block is kBlockBytes of one variable and is handled by one lane as a whole, so that no sum, norm or
/// checksum depends on the number of lanes.
class FusedUpdate {
 public:
  /// Of on-write variables all copies are updated, of on-read ones the first replica's component.
  FusedUpdate(std::vector<UpdateTarget> targets, ReplicaRange replicas, int lanes);

  /// Takes the memory of variables and slots, as a step begins: it may have been bound anew since the last one.
  void begin_step();
  /// Says for the next step how target i is updated: null leaves it as it is. What is pointed to outlives the step.
  void set_coefficients(std::size_t i, const Coefficients* coefficients) { targets_[i].coefficients = coefficients; }
  bool present(std::size_t i) const { return targets_[i].coefficients != nullptr; }

  /// The lane's part of the squared norm of the summed gradients, without touching anything.
  void measure(const GradientTable& gradients, int lane);
  /// The lane's part of the update, the gradients times `clip`; measures at the same time.
  void update(const GradientTable& gradients, int lane, double clip);
  /// The norm of the whole gradient, as the last measure or update of all lanes found it.
  double global_norm() const;

  /// A variable whose memory was not as the last update had left it, and the first of its copies where that was seen.
  struct ForeignWrite {
    std::size_t target;
    std::size_t copy;
    auto operator<=>(const ForeignWrite&) const = default;
  };
  /// One for each such variable, in order; the update clears the list first.
  std::vector<ForeignWrite> take_foreign_writes();
  /// The variables whose part of the norm is not finite.
  std::vector<std::size_t> variables_not_finite() const;

 private:
  /// All that the loop over blocks needs, side by side: with thousands of small variables every pointer that is
  /// followed costs as much as the arithmetic. The pointers hold until the memory is bound anew.
  struct Target {
    const Coefficients* coefficients = nullptr;
    char* weights = nullptr;  // the first copy's
    char* slots[kMaxSlots] = {};
    uint64_t* checksums = nullptr;  // of the first copy; null where nobody looks
    int64_t bytes;
    int64_t first_block;  // in the whole
    at::ScalarType type;
    UpdateKind kind;
    bool one_copy;
  };
  struct alignas(64) LaneWork {
    std::vector<const void*> row;  // a block of a variable's gradients, by replica
    std::vector<char> scratch;     // rows of kSumBlock elements, for sums
    std::vector<char> converted;   // blocks of half-precision values as float
    std::vector<ForeignWrite> foreign_writes;
  };
  struct Place {  // where a lane begins
    std::size_t target;
    int64_t block;  // within the target
  };

  /// Calls visit(target index, block within it) for each block of the lane whose variable is present.
  template <class Visit>
  void for_each_block(const GradientTable& gradients, int lane, const Visit& visit);
  /// Asks the processor for where target i's memory begins.
  void fetch(const GradientTable& gradients, std::size_t i) const;
  template <class T>
  void run_block(const GradientTable& gradients, int lane, std::size_t i, int64_t block, double clip, bool update);
  template <class Half>
  void run_half_block(const GradientTable& gradients, int lane, std::size_t i, int64_t block, double clip, bool update);
  void run(const GradientTable& gradients, int lane, double clip, bool update);
  /// Elements [offset, offset + count) of variable i's leaves, by replica; null: absent. Valid until the lane's next
  /// call.
  template <class T>
  const void* const* row(const GradientTable& gradients, int lane, std::size_t i, int64_t offset, int64_t count);
  void compare_and_copy(int lane, std::size_t i, int64_t block, uint64_t read, uint64_t written);

  const std::vector<UpdateTarget> owners_;  // of what targets_ point to
  const ReplicaRange replicas_;
  uint64_t bindings_ = ~uint64_t{0};  // VariableMemory::bindings() when the pointers were taken
  std::vector<Target> targets_;
  std::vector<Place> lane_begin_;  // one more at the end
  std::vector<LaneWork> lanes_;
  std::vector<double> squares_;  // of each block
};

}  // namespace lockstep::internal
