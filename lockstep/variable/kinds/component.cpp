#include "lockstep/variable/kinds/component.h"

#include "lockstep/core/torch_compat.h"

namespace lockstep::internal::inline variable {

namespace {

/// at::Tensor::_version() without its nested calls: with thousands of variables these calls are what a step costs.
uint32_t version_of(const at::Tensor& tensor) {
  return static_cast<uint32_t>(tensor.unsafeGetTensorImpl()->version_counter().current_version());
}

uint64_t layout_of(const at::Tensor& tensor) {
  uint64_t digest = static_cast<uint64_t>(tensor.scalar_type());
  const auto add = [&](int64_t number) {
    digest = (digest ^ static_cast<uint64_t>(number)) * 0x9e3779b97f4a7c15u;
    digest ^= digest >> 32;
  };
  add(static_cast<int64_t>(tensor.device().type()) * 256 + tensor.device().index());
  for (const int64_t size : tensor.sizes()) add(size);
  for (const int64_t stride : tensor.strides()) add(stride);
  return digest;
}

}  // namespace

void Component::expect() {
  if (watch == Watch::kNothing) return;
  address = address_of(tensor);
  layout = layout_of(tensor);
  version = version_of(tensor);
}

void Component::moved() {
  if (watch != Watch::kNothing) address = address_of(tensor);
}

bool Component::as_left() const {
  if (watch == Watch::kNothing) return true;
  return address_of(tensor) == address && layout_of(tensor) == layout &&
         (watch == Watch::kMemory || version_of(tensor) == version);
}

}  // namespace lockstep::internal::variable
