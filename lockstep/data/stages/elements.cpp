#include "lockstep/data/stages/elements.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lockstep/data/deal/batch_copy.h"

namespace lockstep::internal::inline data {

int64_t ElementsInMemory::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(all_.size());
}

std::optional<Batch> ElementsInMemory::find(int64_t i) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = static_cast<std::size_t>(i);
  return place < all_.size() ? all_[place] : std::nullopt;
}

bool ElementsInMemory::add(int64_t i, const Batch& element) {
  Batch own = copied(element);  // a view would keep all rows that were read with it
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = static_cast<std::size_t>(i);
  if (place >= all_.size()) all_.resize(place + 1);
  if (!all_[place]) all_[place] = std::move(own);
  return true;
}

namespace {

/// Whether the strides are those of a new tensor of these sizes. Where a size is 1, contiguous() leaves any stride.
bool has_strides_of_new(const at::Tensor& tensor) {
  int64_t stride = 1;
  for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
    if (tensor.stride(d) != stride) return false;
    stride *= std::max<int64_t>(tensor.size(d), 1);
  }
  return true;
}

}  // namespace

void to_kept_form(Batch& element, bool is_kept_in_file) {
  for_each_tensor(element, [&](at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided) return;
    tensor = tensor.detach().resolve_conj().resolve_neg();
    const at::MemoryFormat format = is_kept_in_file ? at::MemoryFormat::Contiguous : tensor.suggest_memory_format();
    tensor = tensor.contiguous(format);
    if (format == at::MemoryFormat::Contiguous && !has_strides_of_new(tensor)) tensor = tensor.clone(format);
  });
}

}  // namespace lockstep::internal::data
