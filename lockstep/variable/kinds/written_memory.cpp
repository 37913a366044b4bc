#include "lockstep/variable/kinds/written_memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

#include "lockstep/core/torch_compat.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline variable {

namespace {

bool has_host_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested() && tensor.device().is_cpu() &&
         tensor.numel() > 0;
}

}  // namespace

AddressRange address_range_of(const at::Tensor& tensor) {
  if (!has_host_memory(tensor)) return {};
  int64_t last = 0;  // LibTorch's strides are not negative
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto begin = reinterpret_cast<std::uintptr_t>(address_of(tensor));
  return {begin, begin + static_cast<std::uintptr_t>(last + 1) * tensor.element_size()};
}

AddressRange address_range_of_storage(const at::Tensor& tensor) {
  AddressRange all = address_range_of(tensor);
  if (all.empty()) return all;
  const std::uintptr_t begin = all.begin - static_cast<std::uintptr_t>(tensor.storage_offset()) * tensor.element_size();
  return {begin, std::max(all.end, begin + static_cast<std::uintptr_t>(tensor.storage().nbytes()))};
}

void WrittenMemory::add(const at::Tensor& tensor) {
  AddressRange joined = address_range_of(tensor);
  if (joined.empty()) return;
  auto next = ranges_.upper_bound(joined.end);
  while (next != ranges_.begin()) {
    const auto before = std::prev(next);
    if (before->second < joined.begin) break;
    joined = {std::min(joined.begin, before->first), std::max(joined.end, before->second)};
    next = ranges_.erase(before);
  }
  ranges_.emplace_hint(next, joined.begin, joined.end);
}

void WrittenMemory::add(const VariableState& variable) {
  for (const at::Tensor& copy : variable.copies()) add(copy);
  if (variable.on_write()) return;
  for (int64_t r = 0; r < variable.num_components(); ++r) add(variable.component(r));
}

bool WrittenMemory::overlaps(const at::Tensor& tensor) const {
  const AddressRange range = address_range_of(tensor);
  if (range.empty()) return false;
  const auto next = ranges_.lower_bound(range.end);
  return next != ranges_.begin() && std::prev(next)->second > range.begin;
}

void copy_overwritten(std::vector<at::Tensor>& values, const VariableState& variable) {
  WrittenMemory written;
  for (std::size_t r = 0; r < values.size(); ++r) {
    values[r] = written.copied_if_inside(values[r]);
    written.add(variable.component(static_cast<int64_t>(r)));
    if (!variable.copies().empty()) written.add(variable.memory(static_cast<int64_t>(r)));  // of a locally trained one
  }
}

}  // namespace lockstep::internal::variable
