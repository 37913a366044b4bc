// Tests the kernels of a memory: whole ranges have the bits of the loops that define them.
#include "lockstep/reduce/kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/reduce/reduce_tensors.h"

namespace lockstep::internal {
namespace {

/// What kernels make of `values`, on ranges that end at the elements `cuts`, in one output for each value.
std::vector<at::Tensor> summed(const std::vector<at::Tensor>& values, bool mean, bool past_caches,
                               const std::vector<int64_t>& cuts) {
  std::vector<at::Tensor> results;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const at::Tensor& value : values) {
    results.push_back(at::full_like(value, -7));
    inputs.push_back(host_bytes(value).data());
    outputs.push_back(host_bytes_to_write(results.back()).data());
  }
  int64_t begin = 0;
  for (const int64_t end : cuts) {
    kernels_of(values.front())
        .sum({.type = values.front().scalar_type(),
              .inputs = inputs,
              .outputs = outputs,
              .begin = begin,
              .end = end,
              .mean = mean,
              .past_caches = past_caches});
    begin = end;
  }
  return results;
}

TEST(Kernels, SumsOfRangesHaveTheBitsOfTheWholeReduction) {
  constexpr int64_t kCount = 10000;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const int64_t replicas : {1, 2, 7, 9}) {
      at::manual_seed(1);
      std::vector<at::Tensor> values;
      for (int64_t r = 0; r < replicas; ++r) values.push_back(at::randn({kCount}, type));
      for (const bool mean : {false, true}) {
        const at::Tensor expected = reduce_tensors(mean ? Reduction::kMean : Reduction::kSum, values);
        for (const bool past_caches : {false, true}) {
          for (const at::Tensor& result : summed(values, mean, past_caches, {16, 4096, 4112, kCount}))
            EXPECT_TRUE(same_bits(result, expected)) << replicas << " values of " << c10::toString(type);
        }
      }
    }
  }
}

TEST(Kernels, ChecksumsAreThoseOfEachBlock) {
  std::vector<char> memory(static_cast<std::size_t>(3 * kBlockBytes + 20));
  std::iota(memory.begin(), memory.end(), char{1});
  std::vector<uint64_t> words(5, 1);
  host_kernels().checksum_blocks(memory.data(), static_cast<int64_t>(memory.size()), words.data());
  for (int64_t block = 0; block < 4; ++block) {
    const int64_t bytes = block < 3 ? kBlockBytes : 20;
    EXPECT_EQ(words[static_cast<std::size_t>(block)], checksum(memory.data() + block * kBlockBytes, bytes)) << block;
  }
  EXPECT_EQ(words[4], 1u) << "a word behind the last block";
}

TEST(Kernels, CopyBytesInAnyModeAndMoveNoVersion) {
  const at::Tensor from = at::tensor({0.0f, -0.0f, 3.0f});
  const at::Tensor to = at::ones({3}).requires_grad_();  // copy_ would refuse a leaf that requires a gradient
  const int64_t before = to._version();
  copy_bytes(to, from);
  EXPECT_TRUE(same_bits(to.detach(), from));
  EXPECT_EQ(to._version(), before);
  copy_bytes(at::empty({0}), at::empty({0}));
}

}  // namespace
}  // namespace lockstep::internal
