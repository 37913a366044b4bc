// A batch: the samples that a replica's step gets, and where they came from.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <string>

namespace lockstep {

/// One replica's part of a global batch. A program that makes a Batch itself may leave `ids` undefined, and sets
/// `global_size`, which ReplicaContext::scale_loss() needs. Strategy::split() sets both.
struct Batch {
  at::Tensor input = {};    // [size, ...]
  at::Tensor target = {};   // [size, ...]; undefined where there is none
  at::Tensor ids = {};      // int64 [size]: which samples of the data set; -1 for rows of padding
  int64_t global_size = 0;  // samples in the global batch, over all replicas: the same in each part
  /// What else a sample has, by name, each [size, ...]. Names may be nested by slashes: "boxes/left".
  std::map<std::string, at::Tensor> more = {};
  /// How many rows at the end are padding (Remainder::kPad). They have weight 0: neither global_size nor scale_loss()
  /// counts them. The loss must be a mean over the first samples() rows. cross_entropy and nll_loss leave padding out
  /// by themselves, because its int64 targets are -100; for other losses there is mean().
  int64_t padding = 0;
  /// Which global batch this is a part of, in words, such as "samples at 64 to 127 of epoch 0"; the same in each part
  /// on all workers. distribute() and split() set it where there are several workers, and a run compares it: workers
  /// that give batches of different origin make an error of it. A program's own batches may leave it empty.
  std::string origin = {};

  /// Rows in this part, padding included; may be 0.
  int64_t size() const {
    const at::Tensor& one = ids.defined() ? ids : input;
    return one.defined() && one.dim() > 0 ? one.size(0) : 0;
  }
  /// Samples in this part: rows that are no padding.
  int64_t samples() const { return size() - padding; }
  /// The mean, without dimensions, of all elements of `losses`, [size, ...], in the first samples() rows; NaN where
  /// there are none, of which scale_loss() makes 0. Throws a UsageError where `losses` has another number of rows.
  at::Tensor mean(const at::Tensor& losses) const;
  /// float32 [size]: 1 for each sample, then 0 for each row of padding.
  at::Tensor weights() const;
};

/// Tells merge_call where a Batch has tensors (replica/tensors_in.h).
template <class Fn>
void for_each_tensor(Batch& batch, const Fn& fn) {
  fn(batch.input);
  fn(batch.target);
  fn(batch.ids);
  for (auto& [name, tensor] : batch.more) fn(tensor);
}

}  // namespace lockstep
