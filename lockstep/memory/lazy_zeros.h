// Tensors of zeros that take memory only where they are written.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace lockstep::internal {

/// A dense tensor of zeros with the dtype, sizes and strides of `like`. The system gives it a page of memory when that
/// page is first written; reading takes none. Small ones, up to 64 KiB, are ordinary memory. Throws std::bad_alloc
/// where the system gives no addresses.
at::Tensor lazy_zeros_like(const at::Tensor& like);

/// Makes bytes [begin, begin + bytes) of such a tensor zero again. Whole pages go back to the system.
void clear_lazily(const at::Tensor& tensor, int64_t begin, int64_t bytes);

}  // namespace lockstep::internal
