#include "lockstep/variable/kinds/component_snapshot.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <cstring>

#include "lockstep/core/torch_compat.h"
#include "lockstep/variable/kinds/written_memory.h"
#include "lockstep/variable/values.h"

namespace lockstep::internal::inline variable {

namespace {

bool in_same_place(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg() &&
         same_layout(a, b);
}

}  // namespace

void ComponentSnapshot::take(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(address_range_of(tensor).bytes());
  if (!shell_.defined() || !in_same_place(shell_, tensor)) {
    shell_ = tensor.variable_data();
    bytes_ = bytes == 0 ? at::Tensor() : at::empty({bytes}, at::kByte);
  }
  if (bytes > 0) std::memcpy(bytes_.data_ptr(), address_of(tensor), static_cast<std::size_t>(bytes));
  taken_ = true;
}

bool ComponentSnapshot::is_of(const at::Tensor& tensor) const {
  return in_same_place(shell_, tensor) &&
         (!bytes_.defined() || std::memcmp(bytes_.data_ptr(), address_of(tensor), bytes_.nbytes()) == 0);
}

at::Tensor ComponentSnapshot::values() const {
  const at::NoGradGuard no_grad;
  at::Tensor copy = at::empty_strided(shell_.sizes(), shell_.strides(), shell_.options());
  if (bytes_.defined()) std::memcpy(copy.data_ptr(), address_of(bytes_), bytes_.nbytes());
  if (shell_.is_conj()) copy = at::_conj(copy);
  return shell_.is_neg() ? at::_neg_view(copy) : copy;
}

void ComponentSnapshot::put_back(at::Tensor& tensor) const {
  const at::NoGradGuard no_grad;
  const auto end = static_cast<std::size_t>(shell_.storage_offset()) * shell_.element_size() +
                   (bytes_.defined() ? bytes_.nbytes() : 0);
  const bool memory_shrank = shell_.storage().nbytes() < end;  // by a resize of the storage itself
  const at::Tensor home =
      memory_shrank ? at::empty_strided(shell_.sizes(), shell_.strides(), shell_.options()) : shell_;
  if (!in_same_place(home, tensor)) tensor.set_data(home);
  if (bytes_.defined()) std::memcpy(home.data_ptr(), address_of(bytes_), bytes_.nbytes());
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace lockstep::internal::variable
