#include "lockstep/server/remote/batch_bytes.h"

#include <ATen/ATen.h>

#include <utility>

#include "lockstep/server/remote/tensor_bytes.h"

namespace lockstep::internal::inline server {

void require_sendable(const Batch& batch) {
  for (const at::Tensor* one : {&batch.input, &batch.target, &batch.ids}) require_sendable(*one);
  for (const auto& [name, tensor] : batch.more) require_sendable(tensor);
}

void put(std::string& bytes, const Batch& batch) {
  ByteWriter to(bytes);
  for (const at::Tensor* one : {&batch.input, &batch.target, &batch.ids}) put(bytes, *one);
  to.put(batch.global_size);
  to.put(batch.padding);
  to.put_text(batch.origin);
  to.put(uint64_t{batch.more.size()});
  for (const auto& [name, tensor] : batch.more) {
    to.put_text(name);
    put(bytes, tensor);
  }
}

Batch get_batch(MessageReader& from) {
  Batch batch;
  for (at::Tensor* one : {&batch.input, &batch.target, &batch.ids}) *one = get_tensor(from);
  from.expect(!batch.ids.defined() ||
              (!batch.ids.is_sparse() && batch.ids.dim() == 1 && batch.ids.scalar_type() == at::kLong));
  batch.global_size = from.get<int64_t>();
  batch.padding = from.get<int64_t>();
  from.expect(batch.padding >= 0 && batch.padding <= batch.size() && batch.global_size >= batch.samples());
  batch.origin = from.get_text();
  for (std::size_t left = from.get_count(sizeof(uint64_t)); left > 0; --left) {
    std::string name(from.get_text());
    from.expect(batch.more.emplace(std::move(name), get_tensor(from)).second);
  }
  return batch;
}

}  // namespace lockstep::internal::server
