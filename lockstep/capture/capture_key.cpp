#include "lockstep/capture/capture_key.h"

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/torch_compat.h"

namespace lockstep::internal::inline capture {

void CaptureKey::add(const at::Tensor& tensor) {
  tensors_.push_back(tensor);
  if (!tensor.defined()) return words_.push_back(-1);
  words_.push_back(tensor.dim());
  words_.push_back(static_cast<int64_t>(tensor.scalar_type()));
  words_.push_back(static_cast<int64_t>(tensor.layout()));
  words_.push_back((tensor.requires_grad() ? 1 : 0) + (tensor.is_conj() ? 2 : 0) + (tensor.is_neg() ? 4 : 0));
  words_.push_back(static_cast<int64_t>(tensor.device().type()));
  if (!tensor.has_storage()) return;
  for (const int64_t size : tensor.sizes()) words_.push_back(size);
  for (const int64_t stride : tensor.strides()) words_.push_back(stride);
  // Where two have one memory, a view of one may be a view of the other, so their distance counts.
  for (std::size_t i = 0; i + 1 < tensors_.size(); ++i) {
    const at::Tensor& other = tensors_[i];
    if (!other.defined() || !other.has_storage() || !other.storage().is_alias_of(tensor.storage())) continue;
    words_.push_back(static_cast<int64_t>(i));
    words_.push_back(tensor.storage_offset() * static_cast<int64_t>(tensor.element_size()) -
                     other.storage_offset() * static_cast<int64_t>(other.element_size()));
    return;
  }
  words_.push_back(-1);
}

void CaptureKey::add(const std::string& text) { texts_.push_back(text); }

void CaptureKey::add_unknown(const std::type_info& type) {
  if (unknown_.empty()) unknown_ = c10::demangle(type.name());
}

void CaptureKey::add_thread_modes() {
  const ThreadModes modes = thread_modes();
  words_.push_back(static_cast<int64_t>(modes.included_keys));
  words_.push_back(static_cast<int64_t>(modes.excluded_keys));
  words_.push_back(modes.autograd);
  for (const at::ScalarType dtype : modes.autocast_dtypes) words_.push_back(static_cast<int64_t>(dtype));
}

std::string CaptureKey::describe() const {
  std::vector<std::string> all;
  for (const at::Tensor& one : tensors_) {
    if (!one.defined()) continue;
    all.push_back(fmt::format("[{}] {}", fmt::join(one.sizes(), ", "), c10::toString(one.scalar_type())));
  }
  return all.empty() ? std::string("no tensors") : fmt::format("{}", fmt::join(all, ", "));
}

}  // namespace lockstep::internal::capture
