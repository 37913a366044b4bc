// Which tensors a kernel may read by their address: those that are memory of the host and nothing else.
#pragma once

#include <ATen/core/TensorBody.h>

namespace lockstep::internal::inline linear {

/// Whether it is a tensor of float32 in the host's memory, and no wrapper, no view of bits, no lazy tensor, and not one
/// that was made in inference mode. Any thread.
bool is_plain_float(const at::Tensor& tensor);
/// As is_plain_float(), for a tensor that was made in inference mode.
bool is_plain_inference_float(const at::Tensor& tensor);

}  // namespace lockstep::internal::linear
