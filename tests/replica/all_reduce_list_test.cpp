// all_reduce of a list of tensors with gradient: one meeting, and results that are independent tensors.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <utility>
#include <vector>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;

class AllReduceOfAList : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  int64_t replicas() const { return GetParam().first; }
  MirroredStrategy strategy_{{.devices = lanes(GetParam().second), .replicas = GetParam().first}};
};

Tensor value_of(int64_t replica, const std::vector<int64_t>& shape) {
  return torch::randn(shape, at::make_generator<at::CPUGeneratorImpl>(100 + replica));
}

TEST_P(AllReduceOfAList, OfSeveralDtypesIsDifferentiable) {
  strategy_.run([&](ReplicaContext& ctx) {
    const auto own = static_cast<double>(ctx.replica_id() + 1);
    const Tensor x = torch::full({2, 3}, own).requires_grad_();
    const Tensor y = torch::full({}, own, torch::kDouble).requires_grad_();
    const Tensor n = torch::full({2}, ctx.replica_id() + 1, torch::kLong);
    const auto sums = ctx.all_reduce(Reduction::kSum, std::vector<Tensor>{x, n, y, x * 2});
    const auto total = static_cast<double>(replicas() * (replicas() + 1)) / 2;
    EXPECT_TRUE(torch::equal(sums[0], torch::full({2, 3}, total)));
    EXPECT_TRUE(torch::equal(sums[1], torch::full({2}, static_cast<int64_t>(total), torch::kLong)));
    EXPECT_EQ(sums[2].item<double>(), total);
    (sums[0].sum() + sums[2] + sums[3].sum()).backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({2, 3}, 3.0 * static_cast<double>(replicas()))));
    EXPECT_EQ(y.grad().item<double>(), static_cast<double>(replicas()));
  });
}

TEST_P(AllReduceOfAList, WithGradientHasResultsThatCanBeWrittenInPlace) {
  strategy_.run([&](ReplicaContext& ctx) {
    const auto n = static_cast<double>(replicas());
    const Tensor x = torch::full({2, 3}, 2.0).requires_grad_();
    const Tensor y = torch::full({4}, 3.0).requires_grad_();
    for (const auto reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax}) {
      auto results = ctx.all_reduce(reduction, std::vector<Tensor>{x * 1, y * 1});
      results[0].mul_(3).add_(1);
      results[1].mul_(5);
      const double times = reduction == Reduction::kSum ? n : 1;
      EXPECT_TRUE(torch::equal(results[0], torch::full({2, 3}, 6 * times + 1)));
      EXPECT_TRUE(torch::equal(results[1], torch::full({4}, 15 * times)));
      EXPECT_FALSE(results[0].is_alias_of(results[1]));
      const auto gradients = torch::autograd::grad({results[0].sum() + results[1].sum()}, {x, y});
      // Of equal values the lowest replica's is the extreme.
      const double share = reduction == Reduction::kMean  ? 1
                           : reduction == Reduction::kSum ? n
                           : ctx.replica_id() == 0        ? n
                                                          : 0;
      EXPECT_TRUE(torch::allclose(gradients[0], torch::full({2, 3}, 3 * share)));
      EXPECT_TRUE(torch::allclose(gradients[1], torch::full({4}, 5 * share)));
    }
  });
}

TEST_P(AllReduceOfAList, CanBeDifferentiatedTwiceAndHasTheBitsOfSingleTensors) {
  strategy_.run([&](ReplicaContext& ctx) {
    const Tensor x = value_of(ctx.replica_id(), {7}).requires_grad_();
    const Tensor y = value_of(ctx.replica_id() + 50, {3, 2}).requires_grad_();
    const auto list = ctx.all_reduce(Reduction::kMean, std::vector<Tensor>{x * x, y * y * y});
    const Tensor one = ctx.all_reduce(Reduction::kMean, x * x);
    const Tensor other = ctx.all_reduce(Reduction::kMean, y * y * y);
    EXPECT_TRUE(torch::equal(list[0], one));
    EXPECT_TRUE(torch::equal(list[1], other));
    const auto derivatives = [&](const Tensor& of_x, const Tensor& of_y) {
      const auto first = torch::autograd::grad({(of_x * of_x).sum() + (of_y * of_y).sum()}, {x, y}, {}, true, true);
      auto second = torch::autograd::grad({first[0].sum() + first[1].pow(2).sum()}, {x, y});
      second.insert(second.end(), first.begin(), first.end());
      return second;
    };
    const auto ours = derivatives(list[0], list[1]);
    const auto theirs = derivatives(one, other);
    for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << i;
  });
}

TEST_P(AllReduceOfAList, LetsReplicasGoBackThroughDifferentResults) {
  strategy_.run([&](ReplicaContext& ctx) {
    const Tensor x = torch::ones({2}).requires_grad_();
    const Tensor y = torch::ones({3}).requires_grad_();
    const auto sums = ctx.all_reduce(Reduction::kSum, std::vector<Tensor>{x * 1, y * 1});
    sums[ctx.replica_id() == 0 ? 0 : 1].sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::ones({2})));
    EXPECT_TRUE(torch::equal(y.grad(), torch::full({3}, static_cast<double>(replicas() - 1))));
  });
}

TEST_P(AllReduceOfAList, CanBeDifferentiatedTwiceWhereAReplicasGradientNeedsNoGraph) {
  strategy_.run([&](ReplicaContext& ctx) {
    const double own = ctx.replica_id() == 0 ? 1 : 0;  // the other replicas' losses are linear in the sum
    const Tensor x = torch::full({3}, 2.0).requires_grad_();
    const Tensor sum = ctx.all_reduce(Reduction::kSum, x);
    const Tensor loss = own == 1 ? (sum * sum).sum() : sum.sum();
    const Tensor first = torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0];
    const auto n = static_cast<double>(replicas());
    // The sum over replicas of d(loss)/d(sum): 2 * 2n of replica 0, and 1 of each other one.
    EXPECT_TRUE(torch::equal(first.detach(), torch::full({3}, 4 * n + n - 1)));
    (first.sum() * 1.0).backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({3}, 2 * n)));
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, AllReduceOfAList,
                         ::testing::Values(std::pair<int64_t, int>{1, 1}, std::pair<int64_t, int>{2, 2},
                                           std::pair<int64_t, int>{3, 1}, std::pair<int64_t, int>{6, 2},
                                           std::pair<int64_t, int>{8, 1}, std::pair<int64_t, int>{8, 4},
                                           std::pair<int64_t, int>{9, 1}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.first) + "D" + std::to_string(shape.param.second);
                         });

}  // namespace
}  // namespace lockstep
