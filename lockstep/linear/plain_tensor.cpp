#include "lockstep/linear/plain_tensor.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "lockstep/intercept/scopes.h"

namespace lockstep::internal::inline linear {

namespace {

c10::DispatchKeySet keys_of_plain_tensor(bool inference_mode) {
  const c10::InferenceMode scope(inference_mode);  // the caller's thread may be in either mode
  const UnheardScope not_of_the_step;              // nor is this the program's call
  return at::empty({0}, at::kFloat).key_set();
}

}  // namespace

bool is_plain_float(const at::Tensor& tensor) {
  static const c10::DispatchKeySet plain = keys_of_plain_tensor(false);
  return tensor.scalar_type() == at::kFloat && tensor.key_set() == plain;
}

bool is_plain_inference_float(const at::Tensor& tensor) {
  static const c10::DispatchKeySet plain = keys_of_plain_tensor(true);
  return tensor.scalar_type() == at::kFloat && tensor.key_set() == plain;
}

}  // namespace lockstep::internal::linear
