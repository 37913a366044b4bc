#include "lockstep/data/formats/records/tensor_bytes.h"

#include <algorithm>

#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline data {

namespace {

constexpr uint64_t kMostDimensions = 64;

bool get(ByteReader& reader, TensorBytes& tensor, ElementSize element_size) {
  uint64_t dimensions = 0;
  if (!reader.get_text(tensor.name) || tensor.name.empty() || !reader.get(tensor.dtype)) return false;
  if (!reader.get(dimensions) || dimensions > kMostDimensions) return false;
  // A size of 0 counts as 1 here: strides are products too, and must not overflow in a tensor without elements either.
  auto most = static_cast<int64_t>(element_size(tensor.dtype));
  if (most == 0) return false;
  for (uint64_t d = 0; d < dimensions; ++d) {
    int64_t size = 0;
    if (!reader.get(size) || size < 0 || __builtin_mul_overflow(most, std::max<int64_t>(size, 1), &most)) return false;
    tensor.sizes.push_back(size);
  }
  const bool is_empty = std::find(tensor.sizes.begin(), tensor.sizes.end(), 0) != tensor.sizes.end();
  return reader.get_text(tensor.elements) && tensor.elements.size() == (is_empty ? 0 : static_cast<uint64_t>(most));
}

}  // namespace

void append(std::string& bytes, const TensorBytes& tensor) {
  ByteWriter to(bytes);
  to.put_text(tensor.name);
  to.put(tensor.dtype);
  to.put_list(tensor.sizes);
  to.put_text(tensor.elements);
}

std::optional<std::vector<TensorBytes>> tensors_in(std::string_view bytes, ElementSize element_size) {
  std::vector<TensorBytes> tensors;
  for (ByteReader reader(bytes); !reader.at_end();) {
    if (!get(reader, tensors.emplace_back(), element_size)) return std::nullopt;
  }
  return tensors;
}

}  // namespace lockstep::internal::data
