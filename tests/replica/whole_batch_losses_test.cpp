// Losses that look at all samples of the global batch, gathered or summed over the replicas.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <string>
#include <utility>

#include "lockstep/lockstep.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;

class WholeBatchLosses : public ::testing::TestWithParam<std::pair<int64_t, int>> {};

/// z = w x for two features, c = sum(z_a z_b) / 4 over 4 samples, the loss is (c - 1)^2, and w is 0.5. With s the mean
/// of x_a x_b, 17 / 4, the gradient is 4 w s (w^2 s - 1) = 17 / 32.
TEST_P(WholeBatchLosses, HaveTheGradientOfOneDevice) {
  const Tensor x = torch::tensor({{1.0, 2.0}, {2.0, 1.0}, {3.0, -1.0}, {4.0, 4.0}}).to(torch::kFloat);
  for (const bool gathers : {true, false}) {
    for (const bool by_batch : {true, false}) {
      const auto replicas = GetParam().first;
      MirroredStrategy strategy({.devices = lanes(GetParam().second), .replicas = replicas});
      const Variable w = strategy.make_variable(torch::tensor(0.5f), {.name = "w"});
      const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, torch::optim::SGDOptions(1));
      const auto losses = strategy.run(strategy.split(x), [&](ReplicaContext& ctx, const Batch& part) {
        const Tensor z = w.value(ctx) * part.input;
        Tensor c;
        if (gathers) {
          const Tensor all = ctx.all_gather(z);
          c = (all.select(1, 0) * all.select(1, 1)).sum() / 4;
        } else {
          c = ctx.all_reduce(Reduction::kSum, (z.select(1, 0) * z.select(1, 1)).sum()) / 4;
        }
        const Tensor loss = (c - 1).square();
        (by_batch ? ctx.scale_loss(loss) : ctx.scale_loss(loss, 1, ctx.num_replicas())).backward();
        optimizer.step(ctx);
        return loss.detach();
      });
      const double gradient = 0.5 - w.read().item<double>();
      if (by_batch || replicas != 3) {
        EXPECT_EQ(gradient, 0.53125) << (gathers ? "gathered" : "summed") << (by_batch ? "" : ", without a batch");
      } else {
        EXPECT_NEAR(gradient, 0.53125, 1e-6) << "thirds are rounded";
      }
      for (const Tensor& loss : losses) EXPECT_EQ(loss.item<double>(), 0.00390625) << "each replica has the whole loss";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ReplicasAndLanes, WholeBatchLosses,
                         ::testing::Values(std::pair{1, 1}, std::pair{2, 1}, std::pair{3, 2}, std::pair{4, 2},
                                           std::pair{8, 2}),
                         [](const auto& each) {
                           return std::to_string(each.param.first) + "On" + std::to_string(each.param.second);
                         });

}  // namespace
}  // namespace lockstep
