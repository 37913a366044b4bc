// A digest of what steps take and push, by which a replay sees that it departs from its record.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

#include "lockstep/data/batch.h"

namespace lockstep::internal::inline server {

/// The digest of `before` and then a tensor: its dtype, shape and bits. `before` where the tensor is not defined.
uint64_t digest_with(uint64_t before, const at::Tensor& tensor);
/// The same of all that a batch has.
uint64_t digest_with(uint64_t before, const Batch& batch);
/// The 24 bits of it that a record has.
inline uint32_t record_digest(uint64_t digest) { return static_cast<uint32_t>(digest >> 40); }

}  // namespace lockstep::internal::server
