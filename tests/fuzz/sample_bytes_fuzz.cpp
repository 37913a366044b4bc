// Any bytes as those of a sample, which stand in cache files and come from other workers.
#include "lockstep/data/formats/records/tensor_bytes.h"

#include <algorithm>
#include <iterator>

#include "tests/fuzz/fuzz.h"

namespace {

/// Made dtypes, some of which there are not.
uint64_t element_size(uint64_t dtype) {
  constexpr uint64_t kSizes[] = {1, 1, 2, 4, 8, 2, 4, 8, 8, 16, 0, 1};
  return dtype < std::size(kSizes) ? kSizes[dtype] : 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto tensors = internal::tensors_in(bytes, element_size);
  if (!tensors) return 0;
  std::string again;
  for (const internal::TensorBytes& one : *tensors) {
    fuzz::check(!one.name.empty(), "a tensor has a name");
    uint64_t bytes_of_all = element_size(one.dtype);
    fuzz::check(bytes_of_all > 0, "a tensor has a dtype");
    auto stride = static_cast<int64_t>(bytes_of_all);
    for (const int64_t dimension : one.sizes) {
      // As LibTorch multiplies: a tensor without elements has strides too.
      const bool overflows = __builtin_mul_overflow(stride, std::max<int64_t>(dimension, 1), &stride);
      fuzz::check(dimension >= 0 && !overflows, "no size is negative, and no stride overflows");
      bytes_of_all *= static_cast<uint64_t>(dimension);
    }
    fuzz::check(bytes_of_all == one.elements.size(), "there are as many elements as the sizes say");
    internal::append(again, one);
  }
  fuzz::check(again == bytes, "what is read is written the same");
  return 0;
}
