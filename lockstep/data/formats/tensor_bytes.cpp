#include "lockstep/data/formats/tensor_bytes.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::internal {

namespace {

constexpr uint64_t kMostDimensions = 64;

void append(std::string& bytes, uint64_t word) { bytes.append(reinterpret_cast<const char*>(&word), sizeof word); }

void append(std::string& bytes, std::string_view text) {
  append(bytes, uint64_t{text.size()});
  bytes.append(text);
}

/// Takes words and texts from the beginning of bytes, which may hold fewer.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  bool at_end() const { return left_.empty(); }
  bool get(uint64_t& word) {
    if (left_.size() < sizeof word) return false;
    std::memcpy(&word, left_.data(), sizeof word);
    left_.remove_prefix(sizeof word);
    return true;
  }
  bool get(std::string_view& text) {
    uint64_t size = 0;
    if (!get(size) || left_.size() < size) return false;
    text = left_.substr(0, size);
    left_.remove_prefix(size);
    return true;
  }

 private:
  std::string_view left_;
};

bool get(Reader& reader, TensorBytes& tensor, ElementSize element_size) {
  uint64_t dimensions = 0;
  if (!reader.get(tensor.name) || tensor.name.empty() || !reader.get(tensor.dtype)) return false;
  if (!reader.get(dimensions) || dimensions > kMostDimensions) return false;
  // A size of 0 counts as 1 here: strides are products too, and must not overflow in a tensor without elements either.
  auto most = static_cast<int64_t>(element_size(tensor.dtype));
  if (most == 0) return false;
  for (uint64_t d = 0; d < dimensions; ++d) {
    uint64_t word = 0;
    if (!reader.get(word)) return false;
    const auto size = static_cast<int64_t>(word);
    if (size < 0 || __builtin_mul_overflow(most, std::max<int64_t>(size, 1), &most)) return false;
    tensor.sizes.push_back(size);
  }
  const bool is_empty = std::find(tensor.sizes.begin(), tensor.sizes.end(), 0) != tensor.sizes.end();
  return reader.get(tensor.elements) && tensor.elements.size() == (is_empty ? 0 : static_cast<uint64_t>(most));
}

}  // namespace

void append(std::string& bytes, const TensorBytes& tensor) {
  append(bytes, tensor.name);
  append(bytes, tensor.dtype);
  append(bytes, uint64_t{tensor.sizes.size()});
  for (const int64_t size : tensor.sizes) append(bytes, static_cast<uint64_t>(size));
  append(bytes, tensor.elements);
}

std::optional<std::vector<TensorBytes>> tensors_in(std::string_view bytes, ElementSize element_size) {
  std::vector<TensorBytes> tensors;
  for (Reader reader(bytes); !reader.at_end();) {
    if (!get(reader, tensors.emplace_back(), element_size)) return std::nullopt;
  }
  return tensors;
}

}  // namespace lockstep::internal
