// LibTorch's autocast on the calling thread.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/version.h>

namespace lockstep::testing {

inline void set_autocast(bool on) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  at::autocast::set_autocast_enabled(at::kCPU, on);
#else
  at::autocast::set_cpu_enabled(on);
#endif
}

}  // namespace lockstep::testing
