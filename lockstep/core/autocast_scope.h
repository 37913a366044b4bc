// LibTorch's autocast on the calling thread. Versions of LibTorch differ in how it is set, so that torch_compat.cpp has
// what stands behind this.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace lockstep::internal::inline core {

/// While it lives, the calling thread computes under LibTorch's autocast to `type` on that kind of device. It leaves
/// the cache of cast weights as it is: other replicas may be using that.
class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, at::ScalarType type);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const c10::DeviceType device_;
  const bool was_on_;
  const at::ScalarType type_before_;
};

}  // namespace lockstep::internal::core
