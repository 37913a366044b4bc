// A gradient that is not finite is a finding that names it, in each form of update, whether the step looks or not.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/host_update.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A table of sparse gradients, a weight whose gradient may be kept as factors, one in double, and one that is not
/// hurt.
struct ManyForms {
  explicit ManyForms(Strategy& strategy)
      : table(strategy.make_module([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(40, 8).sparse(true)); },
                                   {.name = "table"})),
        layer(strategy.make_module([] { return torch::nn::Linear(300, 256); }, {.name = "layer"})),
        wide(strategy.make_variable(torch::ones({50}, torch::kDouble), {.name = "wide"})),
        sound(strategy.make_variable(torch::ones({3}), {.name = "sound"})),
        optimizer(strategy.make_optimizer(variables(), torch::optim::SGDOptions(0.01))) {}

  std::vector<Variable> variables() const {
    std::vector<Variable> all{wide, sound};
    for (const Variable& one : table.variables()) all.push_back(one);
    for (const Variable& one : layer.variables()) all.push_back(one);
    return all;
  }

  /// A step in which replica `culprit` has gradients of `name` that are times `factor`.
  void step(Strategy& strategy, const std::string& name, int64_t culprit, double factor,
            const StepOptions& options = {}) const {
    strategy.run([&](ReplicaContext& ctx) {
      const auto factor_of = [&](const std::string& one) {
        return one == name && ctx.replica_id() == culprit ? factor : 1.0;
      };
      Tensor loss = wide.value(ctx).sum().to(torch::kFloat) * factor_of("wide") + sound.value(ctx).sum();
      loss = loss + table(ctx)->forward(torch::tensor({3, 5, 3})).sum() * factor_of("table");
      loss = loss + layer(ctx)->forward(torch::ones({4, 300})).sum() * factor_of("layer");
      loss.backward();
      optimizer.step(ctx, options);
    });
  }

  Replicated<torch::nn::Embedding> table;
  Replicated<torch::nn::Linear> layer;
  Variable wide;
  Variable sound;
  Optimizer optimizer;
};

std::vector<Finding> not_finite(const Strategy& strategy) {
  std::vector<Finding> found;
  for (const Finding& one : strategy.findings()) {
    if (one.code == "LS-NOT-FINITE") found.push_back(one);
  }
  return found;
}

struct Replicas {
  int64_t replicas;
  int lanes;
};

class NotFiniteFinding : public ::testing::TestWithParam<Replicas> {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(GetParam().lanes), .replicas = GetParam().replicas, .seed = 1}};
};

TEST_P(NotFiniteFinding, NamesVariableReplicaAndStepOnceAndCountsSteps) {
  const int64_t last = GetParam().replicas - 1;
  for (const std::string name : {"wide", "table", "layer"}) {
    MirroredStrategy strategy({.devices = lanes(GetParam().lanes), .replicas = GetParam().replicas, .seed = 1});
    const ManyForms net(strategy);
    net.step(strategy, name, last, 1);
    EXPECT_TRUE(not_finite(strategy).empty());
    net.step(strategy, name, last, kInfinity);
    net.step(strategy, name, last, NAN);
    const auto found = not_finite(strategy);
    ASSERT_EQ(found.size(), 1U) << name;
    EXPECT_EQ(found[0].count, 2);
    EXPECT_EQ(found[0].step, 1);
    EXPECT_NE(found[0].text.find("'" + name), std::string::npos) << found[0].text;
    EXPECT_NE(found[0].text.find("on replica " + std::to_string(last)), std::string::npos) << found[0].text;
    EXPECT_EQ(found[0].text.find("'sound'"), std::string::npos) << found[0].text;
  }
}

TEST_P(NotFiniteFinding, CountsStepsThatAreSkipped) {
  const ManyForms net(strategy_);
  const Tensor before = net.wide.read();
  for (int k = 0; k < 2; ++k) net.step(strategy_, "wide", 0, NAN, {.skip_non_finite = true});
  EXPECT_TRUE(torch::equal(net.wide.read(), before));
  const auto found = not_finite(strategy_);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].count, 2);
}

TEST_P(NotFiniteFinding, IsNoneWhereSquaresAloneOverflow) {
  const ManyForms net(strategy_);
  net.step(strategy_, "layer", 0, 1e25);
  EXPECT_TRUE(not_finite(strategy_).empty());
}

TEST_P(NotFiniteFinding, OfASumOfFiniteGradientsSaysSo) {
  if (GetParam().replicas == 1) return;
  const auto v = strategy_.make_variable(torch::ones({3}), {.name = "v"});
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{v}, torch::optim::SGDOptions(0.01));
  strategy_.run([&](ReplicaContext& ctx) {
    v.value(ctx).mutable_grad() = torch::full({3}, 3e38f);
    optimizer.step(ctx);
  });
  const auto found = not_finite(strategy_);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].text.find("'v' (in the sum"), std::string::npos) << found[0].text;
}

INSTANTIATE_TEST_SUITE_P(Replicas, NotFiniteFinding,
                         ::testing::Values(Replicas{1, 1}, Replicas{2, 1}, Replicas{4, 2}, Replicas{5, 2}),
                         [](const auto& one) {
                           return "V" + std::to_string(one.param.replicas) + "On" + std::to_string(one.param.lanes);
                         });

TEST(NotFiniteFindingOfWorkers, IsMadeOnEachAndNamesTheReplicaWhereItIs) {
  for (const char* slots : {"whole", "sliced"}) {
    const testing::SlotsAre scope(slots);
    for (const std::vector<int64_t>& hosts : {std::vector<int64_t>{0, 0}, std::vector<int64_t>{0, 1}}) {
      testing::run_workers({.workers = 2, .replicas = 4, .hosts = hosts}, [&](Strategy& strategy) {
        const testing::WavyNet net(strategy);
        net.step(strategy);
        EXPECT_TRUE(not_finite(strategy).empty());
        strategy.run([&](ReplicaContext& ctx) {
          (net.loss(ctx) * (ctx.replica_id() == 3 ? NAN : 1.0)).backward();
          net.optimizer.step(ctx);
        });
        const auto found = not_finite(strategy);
        EXPECT_EQ(found.size(), 1U);
        if (found.empty()) return 0;
        EXPECT_NE(found[0].text.find("'a'"), std::string::npos) << found[0].text;
        const bool names = found[0].text.find("on replica 3 (worker 1)") != std::string::npos;
        EXPECT_EQ(names, strategy.worker_index() == 1) << found[0].text;
        return 0;
      });
    }
  }
}

}  // namespace
}  // namespace lockstep
