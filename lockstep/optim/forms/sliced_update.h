// An update that workers divide: each updates a part of the variables' blocks, and has the slots of this part alone.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/tuning/update_form.h"
#include "lockstep/exchange/factor_exchange.h"
#include "lockstep/exchange/partial_sums.h"
#include "lockstep/exchange/row.h"
#include "lockstep/exchange/slices.h"
#include "lockstep/exchange/travelled.h"
#include "lockstep/gradient/gradients_on_workers.h"
#include "lockstep/optim/forms/sliced_slots.h"
#include "lockstep/optim/fused_update.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline optim {

/// Every worker has all weights. In a step each one gets the others' partial sums of its slices (or their factors),
/// computes the new weights of its slices, and sends them to all. No weight, and nothing of the own slices of slots, is
/// written until all workers have everything: then they vote, and each writes all new weights, and the slots of its
/// slices. So a step is applied whole or not at all. The new slots are not kept meanwhile, which would take as much
/// memory again: a worker computes its slices a second time, with the same bits.
///
/// Each function is called on every worker, in the order below. pack(), prepare() and commit() are called by each lane
/// for its share; all else is called on one thread, while all replicas are at rest.
class SlicedUpdate {
 public:
  /// Why workers cannot divide an update of these variables; empty where they can. The same on every worker.
  static std::string obstacle(const ReplicaGroup& group, const std::vector<std::shared_ptr<VariableState>>& variables);

  /// `update` was made with Slices::lanes_of(). `group` outlives this object. `initial`: see SlicedSlots.
  SlicedUpdate(const ReplicaGroup& group, const FusedUpdate& update, const std::vector<std::vector<double>>& initial,
               std::string name, UpdateForm form);

  SlicedSlots& slots() { return slots_; }

  /// What the other workers need of this one for begin_step(), beside what gradients its replicas have.
  std::string report() const { return slots_.report(); }
  /// `told` is of all workers, and stays until the step ends. `present[i]` says whether the step updates variable i.
  /// Throws what SlicedSlots::slice() throws.
  void begin_step(const ToldOfGradients& told, const std::vector<char>& present);
  void pack(const GradientTable& gradients, int lane, int num_lanes);
  /// Sends factors and partial sums, and gives `gradients` what the own slices add. Throws what the World throws.
  void send(GradientTable& gradients);
  /// After FusedUpdate::measure(): all workers get the squares of all blocks.
  void share_squares(FusedUpdate& update);
  /// Computes the new weights of the own slices, and compares the others' with their checksums.
  void prepare(FusedUpdate& update, const GradientTable& gradients, int lane, int num_lanes, const Clip& clip,
               bool is_measured);
  /// Sends new weights to all, and the squares of their blocks. Then all workers vote; `tell(proposal)` says what else
  /// must be equal. Throws on all of them, so that none commits: the DivergenceError of a foreign write on the worker
  /// that has found one, and a PeerError on the others; a DivergenceError where workers had different weights; what
  /// the World throws.
  void vote(FusedUpdate& update, FunctionRef<void(Proposal&)> tell);
  /// Writes the other workers' new weights. FusedUpdate::update() writes the own ones.
  void commit(int lane, int num_lanes) const;

  /// Whether the sum of variable i's gradients is finite in the own slice. Between send() and the end of the step.
  bool own_sum_is_finite(const GradientTable& gradients, std::size_t i) const;
  /// Whether a step has sent anything yet that travelled() speaks of.
  bool has_sent() const { return sent_ != Sent::kNothing; }
  /// How variable i's gradients came in the last step, and how many bytes this worker sent for it.
  Travelled travelled(std::size_t i) const;

 private:
  /// A piece of a row that another worker updates.
  struct Piece {
    RowPiece row;
    int64_t worker;
    int64_t begin() const { return row.offset * size_of(row.numbers); }  // in bytes within the variable
    int64_t bytes() const { return row.count * size_of(row.numbers); }
  };
  /// A row of the variables that travel in some way, whose slices are those of the update.
  struct SlicedRow {
    RowLayout layout;
    RowSection section;         // by worker
    std::vector<Piece> theirs;  // that other workers own
    int64_t bytes(int64_t worker) const { return section[static_cast<std::size_t>(worker)].bytes; }
    /// A worker's slice in a message of `memory`; or several partial sums of it.
    SumsInMemory in(const at::Tensor& memory, int64_t worker) const;
  };
  SlicedRow lay_out(std::span<const char> taken) const;
  void check_piece(const Piece& piece);
  /// Throws the DivergenceError of a foreign write that prepare() has found.
  void require_no_foreign_write(FusedUpdate& update);
  /// A digest of the weights as the library last left them, which workers with equal vector instructions can compare.
  std::string digest_of_weights() const;
  /// Throws a DivergenceError, on all workers, that names a variable of which workers had different weights.
  void compare_weights() const;
  /// How many bytes the squares of a worker's blocks take, and where they are.
  int64_t square_bytes(int64_t worker) const {
    return (slices_.first_block(worker + 1) - slices_.first_block(worker)) * static_cast<int64_t>(sizeof(double));
  }
  std::span<std::byte> squares_of(FusedUpdate& update, int64_t worker) const;

  const ReplicaGroup& group_;
  const std::vector<UpdateTarget> targets_;
  const std::vector<std::shared_ptr<VariableState>> variables_;
  const std::string name_;
  const UpdateForm form_;
  const int64_t worker_;
  const int64_t num_workers_;
  const Slices slices_;
  SlicedSlots slots_;

  PartialSums partial_sums_;
  FactorExchange factors_;
  enum class Sent : uint8_t { kNothing, kGradients, kAll } sent_ = Sent::kNothing;  // by the last step
  std::vector<char> factored_;                                                      // by variable, of the step
  SlicedRow sums_;                                                                  // what travels as partial sums
  SlicedRow weights_;  // what travels as new weights: all that the step updates
  // By worker: what this worker sends of its partial sums, by subtree; then the new weights that come back, and
  // squares.
  std::vector<at::Tensor> theirs_;
  std::vector<at::Tensor> arrived_;  // by worker: its partial sums of the own slices, by subtree
  at::Tensor own_;                   // the own slices' new weights, and squares
  std::mutex mutex_;
  std::vector<ForeignWrite> foreign_writes_;  // in others' slices, in this step; guarded by mutex_
};

}  // namespace lockstep::internal::optim
