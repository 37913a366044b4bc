#include "lockstep/replica/tensors_in.h"

#include <ATen/ATen.h>

namespace lockstep::internal::inline replica {

namespace {

/// Whether nothing but `tensor` refers to its memory, and whether it can be written in place.
bool is_alone(const at::Tensor& tensor) {
  if (tensor.use_count() > 1 || !tensor.has_storage() || tensor.is_inference()) return false;
  // The memory of at::from_blob is someone else's, and is not resizable. Neither is some memory of LibTorch's own,
  // which is then copied without need.
  return tensor.storage().use_count() == 1 && tensor.storage().resizable() && tensor.is_non_overlapping_and_dense();
}

}  // namespace

at::Tensor own_copy(const at::Tensor& tensor) { return tensor.defined() ? tensor.detach().clone() : tensor; }

void make_own(at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.requires_grad() && tensor.use_count() == 1) tensor = tensor.detach();  // its graph may own the memory too
  if (!is_alone(tensor)) tensor = own_copy(tensor);
}

}  // namespace lockstep::internal::replica
