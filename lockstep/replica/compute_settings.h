// How operators compute on a thread, as far as it decides bits: how many intra-op threads they use, and what becomes of
// denormal numbers. The library fixes both for the length of a step.
//
// at::set_num_threads is not used: it changes the whole process's setting and empties caches of primitives. What it
// stands on is set directly, for the calling thread: OpenMP's and MKL's thread-local numbers. OpenBLAS on its own
// threads has one number for the process, which is set for the length of a run.
#pragma once

#include <cstdint>

#include "lockstep/core/denormals.h"

namespace lockstep::internal {

struct ComputeSettings {
  int threads = 1;  // intra-op threads
  Denormals denormals = Denormals::kFlush;
};

/// Sets the calling thread's settings and keeps them. For threads that belong to the library, before they compute:
/// their intra-op threads take the floating-point modes over when they are made.
void set_compute_settings_of_this_thread(ComputeSettings settings);
/// The number of threads again, where something changed it since; costs nanoseconds where nothing did.
void ensure_intra_op_threads_of_this_thread(int threads);

/// Gives the calling thread the settings, and its own back when it ends.
class ComputeSettingsGuard {
 public:
  explicit ComputeSettingsGuard(ComputeSettings settings);
  ~ComputeSettingsGuard();
  ComputeSettingsGuard(const ComputeSettingsGuard&) = delete;
  ComputeSettingsGuard& operator=(const ComputeSettingsGuard&) = delete;

 private:
  const int threads_;
  const uint32_t modes_;  // of floating point
  int openmp_ = 0;
  int mkl_ = 0;
  int openblas_ = 0;  // 0: not touched
};

}  // namespace lockstep::internal
