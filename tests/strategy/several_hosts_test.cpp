// Several hosts of several workers: each host has one copy of everything, and sums or factors travel between hosts.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <exception>
#include <set>
#include <string>
#include <vector>

#include "lockstep/variable/mirrored_state.h"
#include "tests/support/host_update.h"

namespace lockstep {
namespace {

using testing::first_replica;
using testing::has_value;
using testing::is_shared;
using testing::run_workers;
using testing::WavyNet;
using testing::WorkersCase;

const WorkersCase kTwoHosts{.workers = 4, .replicas = 8, .hosts = {0, 0, 1, 1}};

TEST(SeveralHosts, HaveOneCopyOfEverythingEach) {
  const auto addresses = run_workers(kTwoHosts, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    EXPECT_TRUE(has_value(strategy.describe(), "travel between hosts")) << strategy.describe();
    std::vector<const void*> found;
    strategy.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() != first_replica(strategy)) return;
      for (const Variable& one : net.all()) found.push_back(one.value(ctx).data_ptr());
    });
    return found;
  });
  EXPECT_EQ(addresses[0], addresses[1]);
  EXPECT_EQ(addresses[2], addresses[3]);
  std::set<const void*> distinct;
  for (const auto& found : addresses) distinct.insert(found.begin(), found.end());
  EXPECT_EQ(distinct.size(), 2 * addresses[0].size());
}

TEST(SeveralHosts, UpdateEachForItselfWhereNoTwoWorkersShareOne) {
  run_workers({.workers = 3, .replicas = 3, .hosts = {0, 1, 2}}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    EXPECT_FALSE(is_shared(strategy));
    EXPECT_TRUE(has_value(strategy.describe(), "no two workers share a host"));
    return 0;
  });
}

TEST(SeveralHosts, UpdateEachForItselfWhereMostHaveOneWorkerUnlessAskedFor) {
  for (const char* asked : {"auto", "host-memory"}) {
    const testing::EnvironmentScope form("LOCKSTEP_UPDATE_FORM", asked);
    const bool is_auto = std::string(asked) == "auto";
    run_workers({.workers = 3, .replicas = 3, .hosts = {0, 0, 1}}, [&](Strategy& strategy) {
      const WavyNet net(strategy);
      net.step(strategy);
      EXPECT_EQ(is_shared(strategy), !is_auto);
      EXPECT_EQ(has_value(strategy.describe(), "3 workers are on 2 hosts"), is_auto);
      return 0;
    });
  }
}

TEST(SeveralHosts, NameTheReplicasOfTheHostWhoseMemoryWasWritten) {
  run_workers(kTwoHosts, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    const torch::Tensor c = net.c.read();
    const auto error = testing::error_from<ReplicaError>([&] {
      strategy.run([&](ReplicaContext& ctx) {
        ctx.all_reduce(Reduction::kSum, torch::ones({1}));
        if (ctx.replica_id() == 5) net.a.value(ctx).data_ptr<float>()[90 * 70 - 1] = 7;
        ctx.all_reduce(Reduction::kSum, torch::ones({1}));
        net.loss(ctx).backward();
        net.optimizer.step(ctx);
      });
    });
    testing::expect_error<DivergenceError>([&] { std::rethrow_if_nested(error); }, "LS-FOREIGN-WRITE",
                                           {"variable 'a'", "4, 5, 6, 7"});
    EXPECT_TRUE(torch::equal(net.c.read(), c)) << "the step was applied in part";
    net.a.assign(torch::ones({90, 70}));  // sound again
    net.step(strategy);
    EXPECT_FALSE(torch::equal(net.c.read(), c));
    EXPECT_TRUE(is_shared(strategy));
    return 0;
  });
}

/// A matrix whose gradient can be kept as factors.
struct Layer {
  static constexpr int64_t kRows = 128;
  static constexpr int64_t kColumns = 64;

  explicit Layer(Strategy& strategy)
      : weight(strategy.make_variable(torch::arange(kRows * kColumns).to(torch::kFloat).sin().view({kRows, kColumns}),
                                      {.name = "weight"})),
        optimizer(strategy.make_optimizer({weight}, torch::optim::SGDOptions(0.01).momentum(0.9))) {}

  void step(Strategy& strategy) const {
    strategy.run([&](ReplicaContext& ctx) {
      const auto x = torch::arange(2 * kColumns).add(100 * ctx.replica_id() + ctx.step()).to(torch::kFloat).cos();
      torch::linear(x.view({2, kColumns}), weight.value(ctx)).pow(2).sum().backward();
      optimizer.step(ctx, {.clip_global_norm = 1.0, .check_finite = ctx.step() % 2 == 0});
    });
  }

  Variable weight;
  Optimizer optimizer;
};

/// What describe() says that this worker has sent for the weight: the last words of its line.
std::string sent(const Strategy& strategy) {
  const std::string text = strategy.describe();
  const std::size_t begin = text.find("\nweight ");
  const std::string row = text.substr(begin, text.find('\n', begin + 1) - begin);
  return row.substr(row.find("host memory"));
}

TEST(SeveralHosts, SendTheSumOfAHostAndNotThatOfEachWorker) {
  const testing::FactoredGradientsAre factored("off");
  run_workers(kTwoHosts, [](Strategy& strategy) {
    const Layer layer(strategy);
    for (int step = 0; step < 3; ++step) layer.step(strategy);
    // 2 (H - 1) / H of 32 KiB a host, which its two workers send together.
    EXPECT_TRUE(has_value(sent(strategy), "sums between hosts") && has_value(sent(strategy), "16.0 KiB"))
        << sent(strategy);
    return 0;
  });
}

TEST(SeveralHosts, SendFactorsOnceToEachOtherHost) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const testing::FactoredGradientsAre factored("always");
  const auto trained = [](const WorkersCase& one, const char* expected) {
    return run_workers(one, [&](Strategy& strategy) {
      const Layer layer(strategy);
      for (int step = 0; step < 3; ++step) layer.step(strategy);
      if (expected) {
        EXPECT_TRUE(has_value(sent(strategy), "factors between hosts") && has_value(sent(strategy), expected))
            << sent(strategy);
      }
      return layer.weight.read();
    });
  };
  const torch::Tensor alone = trained({1, 8}, nullptr).front();
  // 2 samples of each of two replicas, 128 + 64 numbers each and the fill of panels.
  for (const torch::Tensor& found : trained(kTwoHosts, "3.5 KiB")) EXPECT_TRUE(torch::equal(found, alone));
  const testing::EnvironmentScope form("LOCKSTEP_UPDATE_FORM", "host-memory");
  const WorkersCase three_hosts{.workers = 4, .replicas = 8, .hosts = {0, 1, 2, 1}};
  for (const torch::Tensor& found : trained(three_hosts, "7.0 KiB")) EXPECT_TRUE(torch::equal(found, alone));
}

/// A step fails before its gradients have travelled, and describe() is asked then.
TEST(SeveralHosts, DescribeNothingOfAStepThatHasNotTravelled) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const testing::FactoredGradientsAre factored("always");
  run_workers(kTwoHosts, [](Strategy& strategy) {
    const Layer layer(strategy);
    for (int step = 0; step < 2; ++step) layer.step(strategy);
    EXPECT_TRUE(has_value(sent(strategy), "factors between hosts"));
    if (strategy.worker_index() == 1) {
      internal::MirroredState& state = const_cast<internal::VariableState&>(layer.weight.state()).as_mirrored();
      state.change([](torch::Tensor& value) { value.add_(1); });
    }
    testing::expect_step_error<DivergenceError>(
        [&] {
          strategy.run([&](ReplicaContext& ctx) {
            layer.weight.value(ctx).pow(2).sum().backward();  // a gradient in memory
            layer.optimizer.step(ctx);
          });
        },
        "LS-DIVERGED", {"weight"});
    EXPECT_FALSE(strategy.describe().empty());
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
