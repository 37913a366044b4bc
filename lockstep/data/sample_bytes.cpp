#include "lockstep/data/sample_bytes.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace lockstep::internal {

namespace {

constexpr uint64_t kMostDimensions = 64;

void put(std::string& bytes, uint64_t word) { bytes.append(reinterpret_cast<const char*>(&word), sizeof word); }

void put(std::string& bytes, std::string_view text) {
  put(bytes, text.size());
  bytes.append(text);
}

void put(std::string& bytes, const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const at::Tensor plain = tensor.detach().contiguous();
  put(bytes, name);
  put(bytes, static_cast<uint64_t>(plain.scalar_type()));
  put(bytes, static_cast<uint64_t>(plain.dim()));
  for (const int64_t size : plain.sizes()) put(bytes, static_cast<uint64_t>(size));
  put(bytes, std::string_view(static_cast<const char*>(plain.data_ptr()), plain.nbytes()));
}

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

bool get(Reader& reader, at::Tensor& tensor) {
  uint64_t type = 0;
  uint64_t dimensions = 0;
  if (!reader.get(type) || !reader.get(dimensions) || dimensions > kMostDimensions) return false;
  if (type >= static_cast<uint64_t>(at::ScalarType::NumOptions)) return false;
  std::vector<int64_t> sizes;
  const auto dtype = static_cast<at::ScalarType>(type);
  int64_t expected = static_cast<int64_t>(c10::elementSize(dtype));
  for (uint64_t d = 0; d < dimensions; ++d) {
    uint64_t size = 0;
    if (!reader.get(size)) return false;
    sizes.push_back(static_cast<int64_t>(size));
    if (sizes.back() < 0 || __builtin_mul_overflow(expected, sizes.back(), &expected)) return false;
  }
  std::string_view bytes;
  if (!reader.get(bytes) || static_cast<int64_t>(bytes.size()) != expected) return false;
  if (c10::isQIntType(dtype)) return false;
  tensor = at::empty(sizes, dtype);
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return true;
}

}  // namespace

std::string bytes_of(const Batch& sample) {
  std::string bytes;
  put(bytes, "i", sample.input);
  put(bytes, "t", sample.target);
  for (const auto& [name, tensor] : sample.more) put(bytes, "m" + name, tensor);
  return bytes;
}

std::optional<Batch> sample_of(std::string_view bytes) {
  Reader reader(bytes);
  Batch sample;
  while (!reader.at_end()) {
    std::string_view name;
    at::Tensor tensor;
    if (!reader.get(name) || name.empty() || !get(reader, tensor)) return std::nullopt;
    if (name == "i") {
      sample.input = std::move(tensor);
    } else if (name == "t") {
      sample.target = std::move(tensor);
    } else {
      sample.more[std::string(name.substr(1))] = std::move(tensor);
    }
  }
  if (!sample.input.defined()) return std::nullopt;
  return sample;
}

}  // namespace lockstep::internal
