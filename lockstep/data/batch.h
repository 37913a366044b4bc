// A batch: the samples that a replica's step gets, and where they came from.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace lockstep {

/// One replica's part of a global batch. A program that makes a Batch itself may leave `ids` undefined, and sets
/// `global_size`, which ReplicaContext::scale_loss() needs. Strategy::split() sets both.
struct Batch {
  at::Tensor input = {};    // [size, ...]
  at::Tensor target = {};   // [size, ...]; undefined where there is none
  at::Tensor ids = {};      // int64 [size]: which samples of the data set
  int64_t global_size = 0;  // samples in the global batch, over all replicas: the same in each part

  /// Samples in this part; may be 0.
  int64_t size() const {
    const at::Tensor& one = ids.defined() ? ids : input;
    return one.defined() && one.dim() > 0 ? one.size(0) : 0;
  }
};

/// Tells merge_call where a Batch has tensors (replica/tensors_in.h).
template <class Fn>
void for_each_tensor(Batch& batch, const Fn& fn) {
  fn(batch.input);
  fn(batch.target);
  fn(batch.ids);
}

}  // namespace lockstep
