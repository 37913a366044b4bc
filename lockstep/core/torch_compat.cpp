#include "lockstep/core/torch_compat.h"

#include <ATen/ATen.h>
#include <ATen/FuncTorchTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cmath>
#include <limits>

namespace lockstep::internal {

ThreadModes thread_modes() {
  ThreadModes modes;
  auto keys = c10::impl::tls_local_dispatch_key_set();  // not const: raw_repr() is not, up to some 2.x
  modes.included_keys = keys.included_.raw_repr();
  modes.excluded_keys = keys.excluded_.raw_repr();
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  modes.autograd = (autograd.get_grad_mode() ? 1u : 0u) | (autograd.get_inference_mode() ? 2u : 0u) |
                   (autograd.get_fw_grad_mode() ? 4u : 0u);
#if LOCKSTEP_TORCH_AT_LEAST(2, 1)
  modes.autograd |= autograd.get_multithreading_enabled() ? 8u : 0u;
#endif
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  modes.autocast_dtypes = {at::autocast::get_autocast_dtype(at::kCPU), at::autocast::get_autocast_dtype(at::kCUDA)};
#else
  modes.autocast_dtypes = {at::autocast::get_autocast_cpu_dtype(), at::autocast::get_autocast_gpu_dtype()};
#endif
  modes.autocast_cache = at::autocast::is_autocast_cache_enabled();
  modes.must_copy = at::hasThreadLocalCallbacks() || c10::ThreadLocalDebugInfo::current() != nullptr ||
                    at::functorch::functorchTLSAccessor() != nullptr;
  return modes;
}

void set_autocast_details(const ThreadModes& modes) {
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  at::autocast::set_autocast_dtype(at::kCPU, modes.autocast_dtypes[0]);
  at::autocast::set_autocast_dtype(at::kCUDA, modes.autocast_dtypes[1]);
#else
  at::autocast::set_autocast_cpu_dtype(modes.autocast_dtypes[0]);
  at::autocast::set_autocast_gpu_dtype(modes.autocast_dtypes[1]);
#endif
  at::autocast::set_autocast_cache_enabled(modes.autocast_cache);
}

void forget_autocast_weights() { at::autocast::clear_cache(); }

at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values) {
#if LOCKSTEP_TORCH_AT_LEAST(2, 0)
  return at::scaled_dot_product_attention(queries, keys, values, {}, 0.0, /*is_causal=*/true);
#else
  const int64_t positions = queries.size(-2);
  const at::Tensor later =
      at::full({positions, positions}, -std::numeric_limits<double>::infinity(), queries.options()).triu_(1);
  const at::Tensor scores =
      at::matmul(queries / std::sqrt(static_cast<double>(queries.size(-1))), keys.transpose(-2, -1));
  return at::matmul((scores + later).softmax(-1), values);
#endif
}

}  // namespace lockstep::internal
