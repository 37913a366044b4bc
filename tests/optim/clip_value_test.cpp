// Limits on the elements of gradients, with the rules of torch::optim.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/optim/own_rule.h"
#include "tests/support/errors.h"
#include "tests/support/host_update.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::expect_step_error;
using testing::lanes;
using testing::step;
using testing::wave;
using torch::Tensor;
namespace optim = torch::optim;

TEST(ClipValue, IsTheClippingOfTorch) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    const Tensor start = wave(61, 83, 0).to(type);
    const Tensor gradient = (wave(61, 83, 1) * 3).to(type);
    MirroredStrategy strategy({.devices = lanes(2), .replicas = 2});
    const Variable w = strategy.make_variable(start, {.name = "w"});
    const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, optim::SGDOptions(1));
    StepInfo info;
    strategy.run([&](ReplicaContext& ctx) {
      w.value(ctx).mutable_grad() = gradient / 2;
      const StepInfo own = optimizer.step(ctx, {.loss_scaled_by_hand = true, .clip_value = 0.5});
      if (ctx.replica_id().value() == 0) info = own;
    });
    Tensor like = start.clone().requires_grad_();
    like.mutable_grad() = gradient.clone();
    torch::nn::utils::clip_grad_value_(like, 0.5);
    EXPECT_TRUE(torch::equal(w.read(), (start - like.grad()))) << type;
    EXPECT_NEAR(info.global_norm, gradient.to(torch::kDouble).norm().item<double>(), 1e-3 * info.global_norm)
        << "before clipping";
  }
}

TEST(ClipValue, LeavesNaNAndLimitsInfinity) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Variable w = strategy.make_variable(torch::zeros({3}), {.name = "w"});
  const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, optim::SGDOptions(1));
  const auto inf = std::numeric_limits<float>::infinity();
  step(strategy, w, optimizer, torch::tensor({inf, -inf, NAN}), {.clip_value = 2.0});
  const Tensor found = w.read();
  EXPECT_EQ(found[0].item<float>(), -2);
  EXPECT_EQ(found[1].item<float>(), 2);
  EXPECT_TRUE(std::isnan(found[2].item<float>()));
}

TEST(ClipValue, OfSparseRowsIsThatOfDenseOnes) {
  const auto trained = [](bool sparse) {
    MirroredStrategy strategy({.devices = lanes(2), .replicas = 2, .seed = 5});
    const auto table =
        strategy.make_module([&] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 3).sparse(sparse)); });
    const Optimizer optimizer = strategy.make_optimizer(table, optim::SGDOptions(0.5));
    strategy.run([&](ReplicaContext& ctx) {
      const Tensor ids = torch::tensor({1, 1, 4, static_cast<int>(ctx.replica_id().value())}, torch::kLong);
      table(ctx)->forward(ids).sum().backward();
      optimizer.step(ctx, {.loss_scaled_by_hand = true, .clip_value = 1.5});
    });
    return table.state().at("weight");
  };
  EXPECT_TRUE(torch::equal(trained(true), trained(false)));
}

TEST(ClipValue, ThatCannotBeIsRefused) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Variable w = strategy.make_variable(torch::zeros({3}), {.name = "w"});
  const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, optim::SGDOptions(1));
  const auto expect_refused = [&](const StepOptions& options, std::string_view value) {
    expect_step_error<UsageError>([&] { step(strategy, w, optimizer, torch::ones({3}), options); }, "LS-OPTION",
                                  {value});
  };
  expect_refused({.clip_value = 0.0}, ".clip_value");
  expect_refused({.clip_value = NAN}, ".clip_value");
  expect_refused({.clip_global_norm = 1.0, .clip_value = 1.0}, ".clip_global_norm");
}

}  // namespace
}  // namespace lockstep
