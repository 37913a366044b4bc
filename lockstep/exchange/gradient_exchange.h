// From the gradients of this worker's replicas to what the update adds for the replicas of all workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/tuning/update_form.h"
#include "lockstep/core/tuning/wire_format.h"
#include "lockstep/exchange/factor_exchange.h"
#include "lockstep/exchange/gradient_buckets.h"
#include "lockstep/exchange/sum_row.h"
#include "lockstep/exchange/travelled.h"
#include "lockstep/gradient/gradients_on_workers.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline exchange {

/// A gradient travels as factors (factor_exchange.h) or as sums (sum_row.h). Every worker sends each owner its partial
/// sums of the owner's slice, adds up its own slice, and sends the sums to all. So a worker whose block is one subtree
/// sends 2(W - 1)/W times the bytes of the gradients. Sums may have been sent ahead, during backward
/// (gradient_buckets.h). All forms have the bits of one worker, but for sums that WireFormat rounds.
///
/// Each function is called on every worker, in the order below. pack(), add() and unpack() are called by each lane for
/// its share; all else is called on one thread, while all replicas are at rest.
class GradientExchange {
 public:
  /// For these variables, in this order, on all workers. `group` outlives it. `form` is the same on all workers; where
  /// it is neither kSums nor kFactors, travels_as_factors() decides for each variable.
  /// `buckets`: whether sums may leave during backward.
  GradientExchange(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group, UpdateForm form,
                   WireFormat wire, bool buckets);

  /// Whether the gradient of variable i travels here: its dtype is float32 or float64.
  bool takes(std::size_t i) const;

  /// Compares a lane's share of what has left during backward with the gradients of the step. Call it on all lanes
  /// before report().
  void compare(const GradientTable& gradients, int lane);
  /// What the other workers need of this one for begin_step(), beside what gradients its replicas have.
  std::string report() const;
  /// `all` has the gradients of each variable, and stays until the step ends; `reports` are those of all workers.
  void begin_step(const std::vector<GradientsOnWorkers>& all, std::span<const std::string> reports);
  /// Whether any variable, or variable i, travels as factors in this step.
  bool has_factors() const { return factors_.has_any(); }
  bool has_factors(std::size_t i) const { return factored_[i] != 0; }
  void pack(const GradientTable& gradients, int lane, int num_lanes);
  /// Sends factors and partial sums. Throws what the World throws.
  void send(const GradientTable& gradients);
  void add(int lane, int num_lanes);
  /// Throws what the World throws.
  void send_sums();
  /// After a run that failed.
  void forget_gradients() noexcept {
    if (buckets_) buckets_->forget_gradients();
  }
  void unpack(int lane, int num_lanes) { row_.unpack(lane, num_lanes); }
  /// Gives `gradients` what the update adds. It refers to memory that stays until the next begin_step().
  void set_leaves(GradientTable& gradients) const;

  /// How many bytes the last step sent to other workers.
  int64_t bytes_sent() const { return bytes_sent_ + factors_.bytes_sent() + (buckets_ ? buckets_->bytes_sent() : 0); }

  /// How variable i travelled in the last step.
  Travelled travelled(std::size_t i) const;

 private:
  void lay_out(const std::vector<char>& summed, const std::vector<GradientsOnWorkers>& all);

  const std::vector<std::shared_ptr<VariableState>> variables_;
  const ReplicaGroup& group_;
  const UpdateForm form_;
  const WireFormat wire_;

  FactorExchange factors_;
  std::vector<char> factored_;  // by variable, of the step
  SumRow row_;
  std::unique_ptr<GradientBuckets> buckets_;  // of the row; null: nothing is sent ahead
  RowSection rest_;                           // of the row: what was not sent ahead in this step
  int64_t bytes_sent_ = 0;
};

}  // namespace lockstep::internal::exchange
