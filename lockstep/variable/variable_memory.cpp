#include "lockstep/variable/variable_memory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "lockstep/core/checksum.h"
#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/variable/values.h"

namespace lockstep::internal {

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
  const bool fits = copies.size() == copies_.size() &&
                    std::equal(copies.begin(), copies.end(), copies_.begin(),
                               [](const auto& a, const auto& b) { return unsuited(a).fits() && same_layout(a, b); });
  if (!fits) {
    throw InternalError("LS-INTERNAL", "a variable was bound to memory of another layout", "please report it");
  }
  for (std::size_t copy = 0; copy < copies.size(); ++copy) {
    const std::size_t bytes = copies_[copy].nbytes();
    if (bytes > 0) std::memcpy(copies[copy].data_ptr(), address_of(copies_[copy]), bytes);
  }
  // Invariant: the checksums still hold, as the bytes are the same.
  copies_ = std::move(copies);
  bindings_.fetch_add(1, std::memory_order_relaxed);
}

uint64_t VariableMemory::checksum_of(std::size_t copy, std::size_t block) const {
  const int64_t offset = static_cast<int64_t>(block) * kBlockBytes;
  const char* memory = static_cast<const char*>(address_of(copies_[copy]));
  return checksum(memory + offset, std::min(kBlockBytes, bytes() - offset));
}

void VariableMemory::renew_checksums() {
  for (std::size_t copy = 0; copy < checksums_.size(); ++copy) {
    for (std::size_t block = 0; block < checksums_[copy].size(); ++block) {
      checksums_[copy][block] = checksum_of(copy, block);
    }
  }
}

std::optional<std::size_t> VariableMemory::foreign_copy() const {
  for (std::size_t copy = 0; copy < checksums_.size(); ++copy) {
    for (std::size_t block = 0; block < checksums_[copy].size(); ++block) {
      if (checksums_[copy][block] != checksum_of(copy, block)) return copy;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::internal
