#include "lockstep/core/process/warm_up.h"

#include <ATen/ATen.h>
#include <ATen/ops/sqrt_cpu_dispatch.h>

#include <mutex>

namespace lockstep::internal::inline core {

namespace {

/// One call settles all vector functions, of float and of double: MKL has one number for the processor. The operator's
/// kernel is called without the dispatcher, so that no mode of the thread plays a part.
void call_a_vector_function() {
  float from = 1;
  float to = 0;
  const at::Tensor one = at::from_blob(&from, {1}, at::kFloat);
  at::Tensor root = at::from_blob(&to, {1}, at::kFloat);
  at::cpu::sqrt_out(root, one);
}

}  // namespace

void warm_up_math() {
  // Not in the initialiser of a static variable: where the process forks while another thread makes the call, the child
  // can make it again.
  static std::once_flag once;
  thread_local bool under_way = false;
  if (under_way) return;  // some LibTorch takes a tensor's memory for the call, and so comes here again
  std::call_once(once, [] {
    under_way = true;
    try {
      call_a_vector_function();
    } catch (...) {
      under_way = false;
      throw;
    }
    under_way = false;
  });
}

}  // namespace lockstep::internal::core
