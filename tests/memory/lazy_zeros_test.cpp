// Tensors of zeros whose pages come when they are written, and go when they are cleared.
#include "lockstep/memory/lazy_zeros.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace lockstep::internal {
namespace {

/// How many pages of a mapped tensor the system has given.
int64_t pages_of(const torch::Tensor& tensor) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> is_there((tensor.nbytes() + page - 1) / page);
  EXPECT_EQ(mincore(tensor.data_ptr(), tensor.nbytes(), is_there.data()), 0);
  return std::count_if(is_there.begin(), is_there.end(), [](unsigned char one) { return (one & 1) != 0; });
}

TEST(LazyZeros, HaveTheLayoutOfTheTensorTheyAreLike) {
  for (const auto& like : {torch::ones({3, 40000}).t(), torch::ones({5}, torch::kDouble), torch::ones({0, 3}),
                           torch::ones({}, torch::kDouble), torch::ones({200, 200}, torch::kBFloat16)}) {
    const torch::Tensor zeros = lazy_zeros_like(like);
    EXPECT_EQ(zeros.sizes(), like.sizes());
    EXPECT_EQ(zeros.strides(), like.strides());
    EXPECT_EQ(zeros.scalar_type(), like.scalar_type());
    EXPECT_FALSE(zeros.requires_grad());
    EXPECT_TRUE(torch::equal(zeros, torch::zeros_like(like)));
  }
}

TEST(LazyZeros, TakeMemoryWhereTheyAreWrittenAndGiveItBack) {
  constexpr int64_t kElements = 32 << 20;  // 128 MiB, far more than a few huge pages
  const torch::Tensor zeros = lazy_zeros_like(torch::empty({kElements}));
  EXPECT_EQ(pages_of(zeros), 0);
  zeros.fill_(1);
  const int64_t all = pages_of(zeros);
  EXPECT_GE(all, 4 * kElements / sysconf(_SC_PAGESIZE));
  clear_lazily(zeros, 0, 4 * kElements);
  EXPECT_EQ(pages_of(zeros), 0);
  EXPECT_EQ(zeros.sum().item<float>(), 0);
}

TEST(LazyZeros, AreClearedByTheByte) {
  for (const int64_t elements : {100, 100000}) {  // ordinary memory, and mapped memory
    const torch::Tensor tensor = lazy_zeros_like(torch::empty({elements}));
    struct Range {
      int64_t first;
      int64_t count;
    };
    for (const Range& range : {Range{0, 0},
                               {0, 1},
                               {3, 50},
                               {elements - 1, 1},
                               {1, elements - 2},
                               {0, elements},
                               {elements / 2, elements / 3}}) {
      tensor.fill_(7);
      clear_lazily(tensor, 4 * range.first, 4 * range.count);
      torch::Tensor expected = torch::full({elements}, 7.0f);
      expected.narrow(0, range.first, range.count).zero_();
      EXPECT_TRUE(torch::equal(tensor, expected)) << range.first << " + " << range.count << " of " << elements;
    }
  }
}

}  // namespace
}  // namespace lockstep::internal
