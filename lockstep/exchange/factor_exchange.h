// Gradients that are never written, on several workers: every replica's factors reach every worker.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/core/blocks.h"
#include "lockstep/core/tuning/update_form.h"
#include "lockstep/gradient/gradients_on_workers.h"
#include "lockstep/reduce/factors.h"

namespace lockstep::internal::inline gradient {
class GradientTable;
}  // namespace lockstep::internal::gradient
namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica
namespace lockstep::internal::inline variable {
class VariableState;
}  // namespace lockstep::internal::variable

namespace lockstep::internal::inline exchange {

/// Whether the gradient of a matrix of [rows, columns] elements travels as the replicas' factors rather than as sums.
/// Every worker then makes what it updates from the factors of all replicas. In return it sends little, and no worker
/// writes the gradient before the update. `factors` is GradientsOnWorkers::factors. `elements_of_sums` says what sums
/// would cost: all workers together would send W - 1 times so many float32 numbers. Between hosts whose workers share
/// memory, both cost H - 1 times as much, with H the number of hosts.
bool travels_as_factors(int64_t rows, int64_t columns, std::span<const FactorsOutline> factors,
                        int64_t elements_of_sums);

/// Which gradients travel in a step, and how, by variable.
struct WayOfGradients {
  std::vector<char> as_factors;
  std::vector<char> as_sums;
};
/// The one place that chooses factors or sums. `all` has the gradients of each variable; those of other dtypes than
/// float32 and float64 do not travel here. A gradient that is kept as factors travels so with UpdateForm::kFactors, and
/// not with kSums; otherwise travels_as_factors() decides, where sums cost `numbers_for_each` numbers for each element.
WayOfGradients choose_ways(std::span<const std::shared_ptr<VariableState>> variables,
                           std::span<const GradientsOnWorkers> all, UpdateForm form, int64_t numbers_for_each);

/// Each function is called on every worker, on one thread, while all replicas are at rest. The factors are sent to the
/// other workers; or packed into memory that the workers of a host map, and read there.
class FactorExchange {
 public:
  /// For these variables, in this order, on all workers. `group` outlives it.
  FactorExchange(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group);

  /// `taken[i]` says whether variable i travels as factors, and `all[i]` what they are. All workers say the same.
  void begin_step(const std::vector<GradientsOnWorkers>& all, const std::vector<char>& taken);
  bool has_any() const { return !variables_of_step_.empty(); }
  /// Throws what the World throws.
  void send(const GradientTable& gradients);
  /// How many elements a worker packs.
  int64_t elements_of(int64_t worker) const;
  /// The same of each variable.
  std::vector<int64_t> elements_by_variable(int64_t worker) const;
  /// Packs the own replicas' factors to `to`, dense float32 at a multiple of 64 bytes.
  void pack(const GradientTable& gradients, float* to) const;
  /// Takes what another worker packs, or has packed, into `memory`. Nothing is read yet.
  void unpack(int64_t worker, const at::Tensor& memory);
  /// Gives `gradients` the leaves of all replicas. They live until the next begin_step(), and those of the own replicas
  /// as long as their gradients.
  void set_leaves(GradientTable& gradients) const;

  /// How many bytes the last step sent to other workers.
  int64_t bytes_sent() const { return bytes_sent_; }
  /// The part of it that is of variable i.
  int64_t bytes_sent_of(std::size_t i) const { return bytes_of_variable_[i]; }

 private:
  Block block(int64_t worker) const { return blocks_[static_cast<std::size_t>(worker)]; }
  /// Calls visit(variable, replica, outline) for each replica of `worker` that has factors, in the order in which they
  /// travel.
  template <class Visit>
  void for_each_outline(int64_t worker, const Visit& visit) const;

  struct OfReplica {
    std::size_t variable;
    int64_t replica;
    std::unique_ptr<const Factors> factors;
  };

  const std::vector<std::shared_ptr<VariableState>> variables_;
  const ReplicaGroup& group_;
  const int64_t worker_;
  std::vector<Block> blocks_;  // by worker: its replicas

  std::vector<std::size_t> variables_of_step_;
  const std::vector<GradientsOnWorkers>* outlines_ = nullptr;  // of the step
  at::Tensor packed_;
  std::vector<at::Tensor> arrived_;     // by worker
  std::vector<OfReplica> from_others_;  // they share the memory that unpack() was given
  std::vector<int64_t> bytes_of_variable_;
  int64_t bytes_sent_ = 0;
};

}  // namespace lockstep::internal::exchange
