// Tensors of zeros that take memory only where they are written.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace lockstep::internal::inline memory {

/// A dense tensor of zeros with the dtype, sizes and strides of `like`. The system gives it a page of memory when that
/// page is first written; reading takes none. Small ones, up to 64 KiB, are ordinary memory. Throws std::bad_alloc
/// where the system gives no addresses.
at::Tensor lazy_zeros_like(const at::Tensor& like);

/// `tensor` is what lazy_zeros_like() gave, whole and not a view. Makes its bytes [begin, begin + bytes) zero again,
/// and gives whole pages back to the system. No other thread uses these bytes.
void clear_lazily(const at::Tensor& tensor, int64_t begin, int64_t bytes);

}  // namespace lockstep::internal::memory
