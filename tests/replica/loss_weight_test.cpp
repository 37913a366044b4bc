// A loss times its replica's part of the batch: the bits of LibTorch's product, in value and in every derivative.
#include "lockstep/replica/loss/loss_weight.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>

#include "lockstep/variable/variable_state.h"

namespace lockstep {
namespace {

using internal::same_bits;
using internal::weighted_loss;
using torch::Tensor;

// A third is rounded in either type, and more so in float.
constexpr double kWeight = 1.0 / 3;

class WeightedLoss : public ::testing::TestWithParam<torch::Dtype> {
 protected:
  Tensor number(double value) const { return torch::tensor(value, GetParam()); }
};

TEST_P(WeightedLoss, HasTheBitsOfTheProductAndOfItsGradient) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {1.7, -0.0, 1e-45, 3e38, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    const Tensor x = number(value).set_requires_grad(true);
    const Tensor y = number(value).set_requires_grad(true);
    const Tensor ours = weighted_loss(x * 3, kWeight);
    const Tensor theirs = (y * 3) * kWeight;
    EXPECT_TRUE(same_bits(ours, theirs)) << value;
    ours.backward(number(0.7));
    theirs.backward(number(0.7));
    EXPECT_TRUE(same_bits(x.grad(), y.grad())) << value;
  }
}

TEST_P(WeightedLoss, CanBeDifferentiatedTwice) {
  const Tensor x = number(1.3).set_requires_grad(true);
  const Tensor loss = weighted_loss(x * x * x, kWeight);
  const Tensor first = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true).front();
  const Tensor second = torch::autograd::grad({first}, {x}).front();
  EXPECT_NEAR(second.item<double>(), 6 * 1.3 * kWeight, 1e-2);  // of half precision, too
}

TEST_P(WeightedLoss, LeavesTheLossAsItIsAndMayBeTakenTwice) {
  const Tensor x = number(2).set_requires_grad(true);
  const Tensor loss = x * 1;
  (weighted_loss(loss, 0.25) + weighted_loss(loss, 0.5) + loss).backward();
  EXPECT_EQ(x.grad().item<double>(), 1.75);
  EXPECT_EQ(loss.item<double>(), 2);
}

TEST_P(WeightedLoss, HasNoGraphWhereThereIsNoneToHave) {
  EXPECT_FALSE(weighted_loss(number(1), kWeight).requires_grad());
  const Tensor x = number(1).set_requires_grad(true);
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(weighted_loss(x, kWeight).requires_grad());
}

INSTANTIATE_TEST_SUITE_P(Types, WeightedLoss, ::testing::Values(torch::kFloat, torch::kDouble, torch::kBFloat16),
                         [](const auto& type) { return std::string(torch::toString(type.param)); });

TEST(WeightedLossOf, AnythingButOneNumberIsLibTorchsProduct) {
  const Tensor several = torch::ones({2, 3}).set_requires_grad(true);
  weighted_loss(several, kWeight).sum().backward();
  EXPECT_TRUE(same_bits(several.grad(), torch::full({2, 3}, kWeight)));
  const Tensor integer = torch::tensor(3);
  EXPECT_TRUE(same_bits(weighted_loss(integer, 0.5), integer * 0.5));
}

TEST(WeightedLossOf, InferenceModeIsAsGood) {
  const c10::InferenceMode inference;
  EXPECT_EQ(weighted_loss(torch::tensor(3.0), 0.5).item<double>(), 1.5);
}

TEST(WeightedLossOf, ATangentIsCarriedOn) {
  const uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
  const Tensor dual = at::_make_dual(torch::tensor(2.0), torch::tensor(3.0), static_cast<int64_t>(level));
  const Tensor loss = weighted_loss(dual, 0.5);
  EXPECT_EQ(std::get<1>(at::_unpack_dual(loss, static_cast<int64_t>(level))).item<double>(), 1.5);
  torch::autograd::ForwardADLevel::release_idx(level);
}

TEST(ZeroThatKeepsGraph, GivesNoGradientWhereAZeroWouldBecomeNaN) {
  const Tensor x = torch::zeros({}).set_requires_grad(true);
  const Tensor zero = internal::zero_that_keeps_graph(x.log());  // the derivative of log at 0 is infinite
  EXPECT_EQ(zero.item<double>(), 0);
  const auto gradient =
      torch::autograd::grad({zero}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/false, /*allow_unused=*/true);
  EXPECT_FALSE(gradient.front().defined());
  x.mutable_grad() = torch::ones({});
  zero.backward();
  EXPECT_EQ(x.grad().item<double>(), 1) << "of another micro-batch";
}

}  // namespace
}  // namespace lockstep
