#include "lockstep/server/record/value_digest.h"

#include <ATen/ATen.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lockstep/core/digest.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/reduce/operands.h"

namespace lockstep::internal::inline server {

uint64_t digest_with(uint64_t before, const at::Tensor& tensor) {
  if (!tensor.defined()) return before;
  if (tensor.layout() == at::kSparse) {
    const at::Tensor one = tensor.coalesce();
    return digest_with(digest_with(before, one.indices()), one.values());
  }
  const at::Tensor plain = plain_and_contiguous(tensor.detach());
  const uint64_t shape = Digest(before).with(plain.scalar_type()).with_all(plain.sizes()).value();
  return plain.nbytes() == 0 ? shape : XXH3_64bits_withSeed(host_bytes(plain).data(), plain.nbytes(), shape);
}

uint64_t digest_with(uint64_t before, const Batch& batch) {
  uint64_t digest = digest_with(before, batch.input);
  digest = digest_with(digest, batch.target);
  for (const auto& [name, tensor] : batch.more) digest = digest_with(Digest(digest).with(name).value(), tensor);
  return digest;
}

}  // namespace lockstep::internal::server
