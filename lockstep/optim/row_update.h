// The update of variables whose gradients are sparse: of the rows that any replica has, and of nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/optim/loops/clip.h"
#include "lockstep/optim/update/bound_update.h"
#include "lockstep/reduce/rows.h"

namespace lockstep::internal::inline optim {

/// Each row is added over the replicas in tree order and then updated once, by the loops of the fused update. begin()
/// and add() are called while all replicas are at rest; lanes call measure() and update() side by side. update() takes
/// no memory, so that a step that has come to it is applied as a whole.
///
/// Of a variable, the blocks with a row of the step are read as a whole: they are compared with the checksums that were
/// kept, and get new ones. A foreign write in another block is found as soon as that block has a row of a step, or by
/// what reads the whole variable.
///
/// Invariant: rows are cut into runs such that no two runs have a block in common, and one lane handles a run. So no
/// sum, norm or checksum depends on the number of lanes, and no two lanes write the same bytes.
class RowUpdate {
 public:
  /// As a step begins. Forgets the rows of the last one.
  void begin(int lanes);
  /// `rows[r]` is what replica r has of the target's gradient, or null. Updates the target's copies; of a variable that
  /// is trained locally, the component of replica `component`.
  void add(std::size_t i, const UpdateTarget& target, int64_t component, const Coefficients& coefficients,
           std::vector<std::shared_ptr<const Rows>> rows);
  /// Forgets what add() was given: nothing is updated.
  void skip() { targets_.clear(); }

  bool is_empty() const { return targets_.empty(); }
  bool has(std::size_t i) const;

  /// Computes the lane's part of the squared norm; writes nothing else.
  void measure(int lane);
  /// Updates the lane's rows, with the gradients clipped, and computes the norm.
  void update(int lane, const Clip& clip);

  /// Of all rows' gradients, before `clip`, from the last measure() or update() of all lanes.
  double sum_of_squares() const;
  /// The variables whose part of it is not finite.
  std::vector<std::size_t> variables_not_finite() const;
  /// Those whose rows of variable i are not finite everywhere, as add() was given them.
  std::vector<std::size_t> replicas_not_finite(std::size_t i) const;
  /// Whether the sum over replicas of variable i's rows is finite everywhere.
  bool sum_is_finite(std::size_t i) const;
  /// As FusedUpdate's.
  std::vector<ForeignWrite> take_foreign_writes();

 private:
  /// One copy of a variable's weights.
  struct Copy {
    char* weights;
    uint64_t* checksums;  // null where it has none
  };
  struct Target {
    std::size_t variable;
    Coefficients coefficients;
    std::vector<std::shared_ptr<const Rows>> rows;  // by replica
    MergedRows merged;
    std::vector<std::size_t> runs;  // the first row of each; one more at the end
    std::vector<Copy> copies;
    std::vector<char*> slots;
    at::ScalarType type;
    UpdateKind kind;
    int64_t bytes;                             // of the variable
    int64_t row_bytes;                         // of one row
    int64_t width;                             // numbers in a row
    std::vector<double> squares;               // by row
    std::vector<std::size_t> foreign_by_lane;  // the first copy that is not as the library left it
  };
  struct alignas(64) LaneWork {
    std::vector<const void*> inputs;  // by replica: its row, or null
    std::vector<char> scratch;        // for sums
    std::vector<char> converted;      // a part of a row of half precision as float
    std::vector<char> clipped;        // a part of a row's clipped sum
  };

  void run(int lane, bool updates, const Clip& clip);
  template <class T, class Stored>
  void run_row(LaneWork& work, Target& target, std::size_t row, bool updates, const Clip& clip) const;
  template <class T>
  const T* sum_of_row(LaneWork& work, const Target& target, std::size_t row, int64_t offset, int64_t count) const;
  /// Calls visit(copy, block) for each block of each copy that has rows [first, end).
  template <class Visit>
  static void for_each_block(const Target& target, std::size_t first, std::size_t end, const Visit& visit);

  std::vector<Target> targets_;  // ascending by variable
  std::vector<LaneWork> lanes_;
};

}  // namespace lockstep::internal::optim
