// What steps have counted until it is brought together: their numbers, without the tensors that had them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/core/per_replica.h"
#include "lockstep/train/totals.h"

namespace lockstep::internal::inline train {

/// One number, or one list of numbers, of each step, of one replica.
class WaitingNumbers {
 public:
  /// Keeps the elements of a plain tensor of the host, and not its memory: the next step gets it, which is still in the
  /// caches. Keeps any other tensor as it is, and from then on all.
  void add(const at::Tensor& value);
  /// What at::stack gives of all; of one, that itself.
  at::Tensor stacked() const;
  void clear();

 private:
  bool is_like_the_others(const at::Tensor& value) const;
  at::Tensor of_bytes(std::size_t first, std::size_t end) const;

  std::vector<std::byte> bytes_;      // of plain tensors
  std::vector<int64_t> sizes_;        // of each of them
  at::ScalarType type_ = at::kFloat;  // the same
  std::size_t count_ = 0;             // of them
  std::vector<at::Tensor> tensors_;   // in place of bytes
};

/// The counts of some steps, of this worker's replicas.
class WaitingCounts {
 public:
  void add(PerReplica<PartCounts> parts, int64_t samples);
  std::size_t size() const { return samples_.size(); }
  bool empty() const { return samples_.empty(); }
  void clear();

  /// By step: the samples that its losses are of.
  const std::vector<int64_t>& samples() const { return samples_; }
  /// By step, [steps].
  at::Tensor losses(ReplicaId r) const { return losses_[index_of(r)].stacked(); }
  /// By step, [steps, MetricSpec::sums of all metrics].
  at::Tensor sums(ReplicaId r) const { return sums_[index_of(r)].stacked(); }
  /// Undefined where the metric has none of that step.
  at::Tensor rows(std::size_t step, ReplicaId r, std::size_t metric) const;

 private:
  std::size_t index_of(ReplicaId r) const { return static_cast<std::size_t>(r.value() - first_.value()); }

  ReplicaId first_ = ReplicaId(0);
  std::vector<int64_t> samples_;
  std::vector<WaitingNumbers> losses_;                      // by replica
  std::vector<WaitingNumbers> sums_;                        // the same
  std::vector<std::vector<std::vector<at::Tensor>>> rows_;  // by step, replica and metric; of a step without any, none
};

}  // namespace lockstep::internal::train
