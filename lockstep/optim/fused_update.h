// From one sum to new weights: adds the replicas' gradients and updates weights and slots in one pass over memory.
// Walk: optim/optimizer_step.cpp -> here -> reduce/loops/tree_sum.inc
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/gradient/block_shares.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/optim/loops/clip.h"
#include "lockstep/optim/loops/update_block.h"
#include "lockstep/optim/rules/update_rule.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline optim {

/// A variable to update, and how.
struct UpdateTarget {
  std::shared_ptr<VariableState> variable;
  std::vector<std::shared_ptr<VariableState>> slots;
  UpdateKind kind;
  std::shared_ptr<const UpdateRule> own_rule = nullptr;  // of kOwn
};

/// Their variables, in order.
std::vector<std::shared_ptr<VariableState>> variables_of(const std::vector<UpdateTarget>& targets);

/// The local replicas whose gradients are added, and whose components the sum updates.
struct ReplicaRange {
  int64_t first;
  int64_t count;
};

/// Lanes call `measure`, `call_rules`, `prepare` and `update` side by side, each for its share of blocks. All else is
/// called while all replicas are at rest.
///
/// There are three kinds. An update of this process alone writes the new values over the old ones. One that all workers
/// of a host share (host_update.h) reads each value where it is, and writes the new one into the next half of the
/// variable's or slot's memory; it has one copy of each. One that workers divide (sliced_update.h) has the blocks of
/// this worker alone: prepare() computes their new weights, and update() then writes them over the old ones. Half
/// precision is not among the dtypes of the second and third kind.
///
/// Rules of the program's own may throw. So call_rules() computes their new values aside, in memory that the update
/// keeps for it; prepare() and update() then take them from there.
///
/// Invariant: a block is kBlockBytes of one variable, and one lane handles it as a whole; of a variable whose rule
/// takes whole variables, one lane handles all blocks. So no sum, norm or checksum depends on the number of lanes, and
/// no two lanes write the same bytes.
class FusedUpdate {
 public:
  /// Updates all copies of an on-write variable. Of a variable that is trained locally, it updates the component of
  /// replica `replicas.first` alone.
  FusedUpdate(std::vector<UpdateTarget> targets, ReplicaRange replicas, int lanes);
  /// An update of which this process has the lanes `lanes`. Where all workers of the host share it, `squares` has a
  /// place for each block, in memory that all of them map. Where workers divide it, `squares` is empty.
  FusedUpdate(std::vector<UpdateTarget> targets, ReplicaRange replicas, LaneRange lanes, std::span<double> squares);

  const std::vector<UpdateTarget>& targets() const { return owners_; }
  /// How many blocks all targets have.
  static int64_t blocks_in(const std::vector<UpdateTarget>& targets);
  /// Which lane of all has which blocks of the targets, and which lanes are of this process.
  const BlockShares& shares() const { return shares_; }
  const LaneRange& lanes() const { return range_; }

  /// Call as a step begins, and where the update is shared, with the coefficients set. Looks up the memory of variables
  /// and slots again where any may have moved since the last step.
  void begin_step();
  /// The numbers by which the next step updates target i; null leaves the target unchanged. The caller keeps
  /// `*coefficients` alive until the step ends.
  void set_coefficients(std::size_t i, const Coefficients* coefficients) { targets_[i].coefficients = coefficients; }
  /// Gets the memory in which gradients of target i are made from factors, so that update() needs none for them.
  void expect_factors(std::size_t i);
  /// Gets the memory that a limit on elements needs.
  void expect_limit();
  bool present(std::size_t i) const { return targets_[i].coefficients != nullptr; }

  /// Computes the lane's part of the squared norm of the summed gradients. Writes no weights, slots or checksums.
  void measure(const GradientTable& gradients, int lane);
  bool has_own_rules() const { return !trials_.empty(); }
  /// Calls the program's own rules for the lane's part, with the gradients clipped, and computes its part of the norm.
  /// `is_measured` as for update(). Keeps what a rule throws, and, where `digests`, digests of what rules gave.
  void call_rules(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured, bool digests);
  /// Throws what the first lane's rule has thrown in the last call_rules().
  void require_rules() const;
  /// A digest of the new values of target i that rules gave to the lanes of this process in the last call_rules(),
  /// where it kept digests; otherwise 0. The sum of all processes' digests does not depend on how they divide the
  /// blocks.
  uint64_t digest_of_rule(std::size_t i) const;
  /// The sum of all targets'.
  uint64_t digest_of_rules() const;
  /// Does the lane's part of the update, with the gradients clipped; computes the norm in the same pass.
  /// Where `is_measured`, measure() has computed it in this step, and other workers may be reading it.
  void update(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured);
  /// Does what update() does, but changes no value, slot or checksum: it writes each block's new weights to
  /// `place(target, offset of the block in bytes)`, where there is room for them. update() with the same arguments then
  /// writes the same bits. For an update that workers divide.
  void prepare(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured,
               FunctionRef<char*(std::size_t, int64_t)> place);
  /// The squares of each block, from the last pass: the lanes of this process have written theirs.
  std::span<double> squares() { return is_shared_ ? shared_squares_ : std::span<double>(own_squares_); }
  /// The sum of squares of the dense gradients, before `clip`, from the last measure or update of all lanes.
  double sum_of_squares() const;

  /// A variable whose memory was not as the library had left it, and the first of its copies that differs.
  struct ForeignWrite {
    std::size_t target;
    std::size_t copy;
    auto operator<=>(const ForeignWrite&) const = default;
  };
  /// One for each such variable, in order of targets. Empties the list, as the next update does.
  std::vector<ForeignWrite> take_foreign_writes();
  /// The variables whose part of the norm is not finite.
  std::vector<std::size_t> variables_not_finite() const;

 private:
  /// All that the loop over blocks needs, side by side: with thousands of small variables every pointer that is
  /// followed costs as much as the arithmetic.
  ///
  /// Invariant: the pointers are those of the memory as of `bindings_`. Memory moves only when it is bound anew, or,
  /// where the update is shared, in each step, and then begin_step() looks it up again. It is dense, so an update may
  /// write it from its first byte to its last.
  struct Target {
    const Coefficients* coefficients = nullptr;
    const char* weights = nullptr;  // the first copy's, or those of the one component that is updated
    const char* slots[kMaxSlots] = {};
    const uint64_t* checksums = nullptr;  // of the first copy; null where it has none
    // Where the update writes.
    char* new_weights = nullptr;
    char* new_slots[kMaxSlots] = {};
    uint64_t* new_checksums = nullptr;
    int64_t bytes;
    int64_t first_block;  // its index among the blocks of all targets
    at::ScalarType type;
    UpdateKind kind;
    bool one_copy;
  };
  struct alignas(64) LaneWork {
    std::vector<const void*> row;    // a block of a variable's gradients, by replica
    std::vector<FactorBlocks> made;  // blocks of gradients that are factors, by replica
    std::vector<char> scratch;       // rows of kSumBlock elements, for sums
    std::vector<char> converted;     // blocks of half-precision values as float
    std::vector<char> written;       // a block's new weights and slots, where these go past the caches, or nowhere
    std::vector<char> clipped;       // a block of clipped sums; for a rule that takes whole variables, all of one
    std::vector<ForeignWrite> foreign_writes;
    bool is_measured = false;  // the squares of this step are there
    std::exception_ptr rule_error;
  };
  /// New values by a rule of the program's own: of all elements of a variable, in the order of its memory.
  struct Trial {
    at::Tensor weights;
    std::vector<at::Tensor> slots;
    bool is_whole;  // the rule takes whole variables
  };
  /// Calls visit(target index, block within it) for each block of the lane whose variable is present.
  template <class Visit>
  void for_each_block(const GradientTable& gradients, int lane, const Visit& visit);
  /// Prefetches the beginning of target i's memory and of its gradients.
  void fetch(const GradientTable& gradients, std::size_t i) const;
  /// What a lane does with its blocks.
  struct Pass {
    bool update = false;  // else it measures, or calls rules
    bool calls_rules = false;
    bool digests = false;  // what rules give
    Clip clip = {};
    const FunctionRef<char*(std::size_t, int64_t)>* prepared = nullptr;  // of prepare()
  };
  template <class T>
  void run_block(const GradientTable& gradients, int lane, std::size_t i, int64_t block, const Pass& pass);
  template <class Half>
  void run_half_block(const GradientTable& gradients, int lane, std::size_t i, int64_t block, const Pass& pass);
  void run(const GradientTable& gradients, int lane, const Pass& pass);
  /// Elements [offset, offset + count) of variable i's leaves, by replica; null: absent. Valid until the lane's next
  /// call.
  template <class T>
  const void* const* row(const GradientTable& gradients, int lane, std::size_t i, int64_t offset, int64_t count);
  /// The sum of elements [offset, offset + count) of variable i's gradients. Valid until the lane's next call.
  template <class T>
  GradientSum<T> sum(const GradientTable& gradients, int lane, std::size_t i, int64_t offset, int64_t count);
  /// The same for at most kSumBlock elements of half precision; `buffer` has room for as many of each replica, and then
  /// points behind what was used of it.
  template <class Half>
  GradientSum<float> wide_sum(const GradientTable& gradients, int lane, std::size_t i, int64_t offset, int64_t count,
                              float*& buffer);
  void make_trials();
  void call_rule(const GradientTable& gradients, int lane, std::size_t i, int64_t block, const Pass& pass);
  template <class T, class Stored>
  void call_rule(const GradientTable& gradients, int lane, std::size_t i, int64_t block, const Pass& pass);
  /// Takes a block's new values from where the rule has left them.
  void take_trial(int lane, std::size_t i, int64_t block, const Pass& pass);
  /// After a block of the first copy was read: `read` is the checksum of its bytes then. Notes a foreign write where
  /// that is not the checksum that was kept. Where the block was updated, `*written` is the checksum of its bytes now;
  /// else null. Then copies the block to the other copies.
  void compare_and_copy(int lane, std::size_t i, int64_t block, uint64_t read, const uint64_t* written);

  void look_up(std::size_t i);
  double& square(int64_t block) { return (is_shared_ ? shared_squares_.data() : own_squares_.data())[block]; }
  double square(int64_t block) const { return (is_shared_ ? shared_squares_.data() : own_squares_.data())[block]; }

  const std::vector<UpdateTarget> owners_;  // keep alive what targets_ point to
  const ReplicaRange replicas_;
  const LaneRange range_;
  BlockShares shares_;
  const bool is_shared_;
  bool streams_ = false;              // new values go past the caches
  uint64_t bindings_ = ~uint64_t{0};  // VariableMemory::bindings() when the pointers were taken
  std::vector<Target> targets_;
  std::vector<LaneWork> lanes_;               // of this process
  std::vector<std::optional<Trial>> trials_;  // by target; empty where no rule is the program's own
  std::vector<uint64_t> rule_digests_;  // by block: of what a call that ends with it gave; as many as blocks, or none
  // The squares of each block: where the update is shared, in memory that the host's workers map.
  std::vector<double> own_squares_;
  const std::span<double> shared_squares_;
};

}  // namespace lockstep::internal::optim
