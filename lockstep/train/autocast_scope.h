// LibTorch's autocast on the calling thread.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKey.h>

#include "lockstep/core/torch_compat.h"

namespace lockstep::internal::inline train {

/// While it lives, the calling thread computes under autocast to bfloat16 on that kind of device. It leaves the cache
/// of cast weights as it is: other replicas may be using that.
class AutocastScope {
 public:
  explicit AutocastScope(c10::DeviceType device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const ThreadModes before_;
  const c10::DispatchKey key_;
  const bool was_off_;
};

}  // namespace lockstep::internal::train
