#include "lockstep/variable/kinds/variable_memory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/kernels.h"
#include "lockstep/variable/values.h"

namespace lockstep::internal::inline variable {

VariableMemory::VariableMemory(const std::vector<at::Tensor>& components, bool has_checksums) {
  for (const at::Tensor& component : components) {
    const void* address = address_of(component);
    const auto known = std::find_if(copies_.begin(), copies_.end(),
                                    [&](const at::Tensor& copy) { return address_of(copy) == address; });
    copy_of_.push_back(static_cast<std::size_t>(known - copies_.begin()));
    if (known == copies_.end()) copies_.push_back(component.variable_data());
  }
  if (!has_checksums) return;
  checksums_.resize(copies_.size(), std::vector<uint64_t>(static_cast<std::size_t>(blocks_of(bytes()))));
  renew_checksums();
}

std::vector<int64_t> VariableMemory::replicas_of(std::size_t copy) const {
  std::vector<int64_t> replicas;
  for (std::size_t r = 0; r < copy_of_.size(); ++r) {
    if (copy_of_[r] == copy) replicas.push_back(static_cast<int64_t>(r));
  }
  return replicas;
}

void VariableMemory::bind(std::vector<at::Tensor> copies) {
  leave_halves();
  const bool fits = copies.size() == copies_.size() &&
                    std::equal(copies.begin(), copies.end(), copies_.begin(),
                               [](const auto& a, const auto& b) { return unsuited(a).fits() && same_layout(a, b); });
  if (!fits) {
    throw InternalError("LS-INTERNAL", "a variable was bound to memory of another layout", "please report it");
  }
  for (std::size_t copy = 0; copy < copies.size(); ++copy) {
    copy_bytes(copies[copy], copies_[copy]);
  }
  // Invariant: the checksums still hold, as the bytes are the same.
  copies_ = std::move(copies);
  bindings_.fetch_add(1, std::memory_order_relaxed);
}

void VariableMemory::renew_checksums() {
  // Invariant: the value lies in this worker's own memory, since the library has just written it.
  for (std::size_t copy = 0; copy < checksums_.size(); ++copy)
    kernels_of(copies_[copy]).checksum_blocks(address_of(copies_[copy]), bytes(), checksums_[copy].data());
}

std::optional<std::size_t> VariableMemory::foreign_copy() const {
  std::vector<uint64_t> found(checksums_.empty() ? 0 : checksums_.front().size());
  for (std::size_t copy = 0; copy < checksums_.size(); ++copy) {
    kernels_of(copies_[copy]).checksum_blocks(address_of(copies_[copy]), bytes(), found.data());
    if (!std::equal(found.begin(), found.end(), checksums(copy))) return copy;
  }
  return std::nullopt;
}

bool VariableMemory::can_move_to_halves() const {
  if (copies_.size() != 1) return false;
  const at::Tensor& copy = copies_.front();
  const at::Storage& storage = copy.storage();
  // The memory of at::from_blob, which is not resizable, is somebody's who has its address.
  return copy.storage_offset() == 0 && storage.nbytes() == copy.nbytes() && storage.resizable();
}

void VariableMemory::move_to_next_half() noexcept {
  half_ = 1 - half_;
  is_in_halves_ = true;
  HostHalves* const owner = halves_.get();
  c10::raw::intrusive_ptr::incref(owner);
  const auto let_go = [](void* one) { c10::raw::intrusive_ptr::decref(static_cast<HostHalves*>(one)); };
  copies_.front().storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr((*halves_)[half_].values, owner, let_go, at::Device(at::kCPU)));
}

bool VariableMemory::leave_halves() {
  if (!is_in_halves_) return false;
  const at::NoGradGuard no_grad;
  const at::Tensor& copy = copies_.front();
  const at::Tensor own = at::empty_strided(copy.sizes(), copy.strides(), copy.options());
  copy_bytes(own, copy);
  if (!checksums_.empty()) {
    const uint64_t* const kept = checksums(0);
    std::copy(kept, kept + checksums_.front().size(), checksums_.front().begin());
  }
  is_in_halves_ = false;
  at::DataPtr memory = own.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, at::Device(at::kCPU)));
  copy.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
  bindings_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace lockstep::internal::variable
