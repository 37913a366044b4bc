// A plan and the memory of its variables and slots, and what lanes find there while they execute it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/optim/update/update_plan.h"
#include "lockstep/optim/update/update_target.h"

namespace lockstep::internal::inline optim {

/// A variable whose memory was not as the library had left it, and the first of its copies that differs.
struct ForeignWrite {
  std::size_t target;
  std::size_t copy;
  auto operator<=>(const ForeignWrite&) const = default;
};

/// All that a loop over blocks needs of a target, side by side: with thousands of small variables every pointer that is
/// followed costs as much as the arithmetic. The memory is dense, so an update may write it from its first byte to its
/// last.
struct BoundTarget {
  struct Copy {
    char* values;
    uint64_t* checksums;
  };

  const Coefficients* coefficients = nullptr;  // of the step under way; null: it is left unchanged
  const char* weights = nullptr;               // the first copy's, or those of the one component that is updated
  const char* slots[kMaxSlots] = {};           // null behind the last one; those of own rules are elsewhere
  const uint64_t* checksums = nullptr;         // of the first copy; null where it has none
  // Where the update writes.
  char* new_weights = nullptr;
  char* new_slots[kMaxSlots] = {};
  uint64_t* new_checksums = nullptr;
  PlannedTarget planned;
  std::vector<Copy> other_copies;  // which get the first one's values
};

/// Lanes use the squares of their own blocks and their own list of foreign writes side by side. All else is called
/// while all replicas are at rest.
///
/// Invariant: the addresses are those of the memory as of `bindings_`. Memory moves only when it is bound anew, or,
/// where the update is shared, in each step, and then begin_step() looks it up again.
class BoundUpdate {
 public:
  /// Where all workers of the host share the update, `squares` has a place for each block, in memory that all of them
  /// map, and new values go to the next half of each value's memory. Otherwise `squares` is empty, and they go over the
  /// old ones.
  BoundUpdate(std::vector<UpdateTarget> owners, ReplicaRange replicas, LaneRange lanes, std::span<double> squares);

  const std::vector<UpdateTarget>& owners() const { return owners_; }
  const UpdatePlan& plan() const { return plan_; }
  const std::vector<BoundTarget>& targets() const { return targets_; }
  bool is_shared() const { return !shared_squares_.empty(); }

  /// Call as a step begins, and where the update is shared, with the coefficients set.
  void begin_step();
  /// The caller keeps `*coefficients` alive until the step ends.
  void set_coefficients(std::size_t i, const Coefficients* coefficients) { targets_[i].coefficients = coefficients; }
  bool present(std::size_t i) const { return targets_[i].coefficients != nullptr; }

  /// A slot of a target with a rule of the program's own: where it is, and where its new values go.
  struct OwnSlot {
    const char* values;
    char* new_values;
  };
  std::span<const OwnSlot> own_slots(std::size_t i) const { return own_slots_[i]; }

  /// The squares of each block of the summed gradient, before clipping, by block.
  std::span<double> squares() { return is_shared() ? shared_squares_ : std::span<double>(own_squares_); }
  double& square(const PlannedTarget& target, int64_t block) {
    return squares()[static_cast<std::size_t>(target.first_block + block)];
  }
  /// The sum of those of all targets that are present.
  double sum_of_squares() const;
  /// The targets that are present and whose squares are not all finite.
  std::vector<std::size_t> targets_not_finite() const;

  /// What a lane of this process has found in its pass, with at most one for each target.
  std::vector<ForeignWrite>& foreign_writes(int lane) { return found_[static_cast<std::size_t>(lane)].foreign_writes; }
  /// One for each variable that any lane has found, in order. Empties the lists.
  std::vector<ForeignWrite> take_foreign_writes();

 private:
  struct alignas(64) FoundByLane {
    std::vector<ForeignWrite> foreign_writes;
  };
  void look_up(std::size_t i);
  std::span<const double> squares() const {
    return is_shared() ? shared_squares_ : std::span<const double>(own_squares_);
  }
  std::span<const double> squares_of(const PlannedTarget& target) const {
    return squares().subspan(static_cast<std::size_t>(target.first_block), static_cast<std::size_t>(target.blocks()));
  }

  std::vector<UpdateTarget> owners_;  // keep alive what targets_ point to
  UpdatePlan plan_;
  std::vector<BoundTarget> targets_;
  std::vector<std::vector<OwnSlot>> own_slots_;  // by target
  std::vector<FoundByLane> found_;               // by lane of this process
  std::vector<double> own_squares_;              // by block
  std::span<double> shared_squares_;             // the same, where the update is shared
  uint64_t bindings_ = ~uint64_t{0};             // VariableMemory::bindings() when the addresses were taken
};

}  // namespace lockstep::internal::optim
