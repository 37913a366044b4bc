#include "lockstep/reduce/reduce_tensors.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/types.h>

#include "lockstep/reduce/addition_order.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep::internal {
namespace {

using torch::Tensor;

std::vector<Tensor> random_values(int64_t replicas, const std::vector<int64_t>& shape, at::ScalarType type,
                                  uint64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  std::vector<Tensor> values;
  for (int64_t r = 0; r < replicas; ++r) {
    values.push_back(at::isFloatingType(type) ? torch::randn(shape, generator).mul(10).to(type)
                                              : torch::randint(-50, 50, shape, generator, type));
  }
  return values;
}

RC_GTEST_PROP(ReduceTensors, SumEqualsTheSequentialSumInTreeOrder, ()) {
  const auto replicas = *rc::gen::inRange<int64_t>(1, 17);
  const auto shape =
      *rc::gen::container<std::vector<int64_t>>(*rc::gen::inRange<std::size_t>(0, 4), rc::gen::inRange<int64_t>(0, 5));
  const auto type = *rc::gen::element(at::kFloat, at::kDouble, at::kInt, at::kLong, at::kHalf, at::kBFloat16);
  const auto values = random_values(replicas, shape, type, *rc::gen::arbitrary<uint32_t>());
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const Tensor expected =
      fold_in_tree_order(
          0, replicas, [&](int64_t i) { return half ? values[i].to(at::kFloat) : values[i].clone(); },
          [](const Tensor& a, const Tensor& b) { return a + b; })
          .to(type);
  const Tensor sum = reduce_tensors(Reduction::kSum, values);
  RC_ASSERT(sum.scalar_type() == type);
  RC_ASSERT(torch::equal(sum, expected));
}

TEST(ReduceTensors, MeanOfIntegersIsFloat64) {
  const std::vector<Tensor> values{torch::tensor({1, 2}, torch::kInt), torch::tensor({2, 4}, torch::kInt)};
  const Tensor mean = reduce_tensors(Reduction::kMean, values);
  EXPECT_EQ(mean.scalar_type(), torch::kDouble);
  EXPECT_TRUE(torch::equal(mean, torch::tensor({1.5, 3.0}, torch::kDouble)));
}

TEST(ReduceTensors, MinAndMaxAreElementwise) {
  const std::vector<Tensor> values{torch::tensor({1, 5}), torch::tensor({4, 2}), torch::tensor({3, 3})};
  EXPECT_TRUE(torch::equal(reduce_tensors(Reduction::kMin, values), torch::tensor({1, 2})));
  EXPECT_TRUE(torch::equal(reduce_tensors(Reduction::kMax, values), torch::tensor({4, 5})));
}

TEST(ReduceTensors, OfOneValueIsACopy) {
  const std::vector<Tensor> values{torch::ones({2})};
  Tensor sum = reduce_tensors(Reduction::kSum, values);
  sum.add_(1);
  EXPECT_TRUE(torch::equal(values[0], torch::ones({2})));
}

TEST(ReduceTensors, RefusesToAddBools) {
  const std::vector<Tensor> values{torch::ones({2}, torch::kBool), torch::ones({2}, torch::kBool)};
  testing::expect_error<UsageError>([&] { reduce_tensors(Reduction::kSum, values); }, "LS-DTYPE", {"sum", "Bool"});
  EXPECT_TRUE(reduce_tensors(Reduction::kMax, values).all().item<bool>());
}

}  // namespace
}  // namespace lockstep::internal
