// From the gradients of this worker's replicas to what the update adds for the replicas of all workers.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/core/update_form.h"
#include "lockstep/optim/factor_exchange.h"
#include "lockstep/optim/gradients_on_workers.h"
#include "lockstep/optim/partial_sums.h"
#include "lockstep/reduce/addition_order.h"

namespace lockstep::internal {

class GradientTable;
class ReplicaGroup;
class VariableState;

/// A gradient travels as factors (factor_exchange.h) or as sums. Those that travel as sums lie one after another, as
/// elements of one row, and each worker owns a slice of the row. Every worker packs its partial sums, one for each
/// maximal subtree of its block of replicas; sends each owner its slice of them; adds up its own slice, in tree order;
/// and sends the sums to all. So a worker whose block is one subtree sends 2(W - 1)/W times the bytes of the gradients,
/// and every element is added up once. Both forms have the bits of one worker.
///
/// Each function is called on every worker, in the order below. pack() and add() are called by each lane for its share;
/// all else is called on one thread, while all replicas are at rest.
class GradientExchange {
 public:
  /// For these variables, in this order, on all workers. `group` outlives it. `form` is the same on all workers; where
  /// it is neither kSums nor kFactors, travels_as_factors() decides for each variable.
  GradientExchange(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group, UpdateForm form);

  /// Whether the gradient of variable i travels here: its dtype is float32 or float64.
  bool takes(std::size_t i) const;

  /// `all` has the gradients of each variable, and stays until the step ends.
  void begin_step(const std::vector<GradientsOnWorkers>& all);
  void pack(const GradientTable& gradients, int lane, int num_lanes);
  /// Sends factors and partial sums. Throws what the World throws.
  void send(const GradientTable& gradients);
  void add(int lane, int num_lanes);
  /// Throws what the World throws.
  void send_sums();
  /// Gives `gradients` what the update adds. It refers to memory that stays until the next begin_step().
  void set_leaves(GradientTable& gradients) const;

  /// How many bytes the last step sent to other workers.
  int64_t bytes_sent() const { return bytes_sent_ + factors_.bytes_sent(); }

  /// How variable i travelled in the last step.
  struct Travelled {
    enum class As : uint8_t { kNothing, kSums, kFactors } as = As::kNothing;
    int64_t bytes = 0;  // that this worker sent; sums without the gaps between variables
  };
  Travelled travelled(std::size_t i) const;

 private:
  /// At most kSumBlock elements of one variable.
  struct Piece {
    std::size_t variable;
    int64_t offset;  // of its first element within the variable
    int64_t count;
    int64_t place;  // of its first byte within the row
  };
  /// A worker's part of the row, in pieces and in bytes.
  struct Slice {
    std::size_t first_piece;
    std::size_t end_piece;
    int64_t begin;
    int64_t bytes;
  };

  void lay_out(const std::vector<char>& summed);
  const std::vector<Subtree>& subtrees(int64_t worker) const { return partial_sums_.subtrees(worker); }
  const Slice& slice(int64_t worker) const { return slices_[static_cast<std::size_t>(worker)]; }
  const Slice& own_slice() const { return slice(worker_); }
  /// Where this worker's partial sum of a subtree for a slice begins.
  std::byte* partial_sum(const Slice& slice, std::size_t subtree) const;
  template <class T>
  void pack_piece(const GradientTable& gradients, int lane, const Piece& piece, const Slice& slice);
  template <class T>
  void add_piece(const Piece& piece);

  const std::vector<std::shared_ptr<VariableState>> variables_;
  const ReplicaGroup& group_;
  const int64_t worker_;
  const int64_t num_workers_;
  const UpdateForm form_;

  PartialSums partial_sums_;
  FactorExchange factors_;
  std::vector<char> summed_;         // by variable, of the layout
  std::vector<char> factored_;       // by variable, of the step
  std::vector<Piece> pieces_;        // in the order of the row
  std::vector<int64_t> places_;      // by variable: its first byte within the row
  std::vector<Slice> slices_;        // by worker
  at::Tensor packed_;                // this worker's partial sums: by slice, then subtree
  std::vector<at::Tensor> arrived_;  // by worker: its partial sums of the own slice, by subtree; its own are in packed_
  at::Tensor sums_;                  // the row
  int64_t bytes_sent_ = 0;
};

}  // namespace lockstep::internal
