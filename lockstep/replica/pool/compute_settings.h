// The settings by which operators compute on a thread, as far as they decide bits: the number of intra-op threads, and
// what happens to denormal numbers. The library fixes both for the length of a step.
//
// at::set_num_threads is not used: it changes the setting of the whole process and empties caches of primitives.
// Instead the thread-local numbers of OpenMP and MKL, which it is built on, are set directly for the calling thread. An
// OpenBLAS with its own threads has one number for the process, which is set for the length of a run.
#pragma once

#include <cstdint>

#include "lockstep/core/denormals.h"

namespace lockstep::internal::inline replica {

struct ComputeSettings {
  int threads = 1;  // intra-op threads
  Denormals denormals = Denormals::kFlush;
};

/// Gives the calling thread these settings for good. For threads that belong to the library: call it before they
/// compute, because their intra-op threads take over the floating-point modes when they are made.
void set_compute_settings_of_this_thread(ComputeSettings settings);
/// Sets the number of threads again where something changed it; costs nanoseconds where nothing did.
void ensure_intra_op_threads_of_this_thread(int threads);

/// Gives the calling thread the settings for as long as the guard lives, then restores the thread's own.
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

}  // namespace lockstep::internal::replica
