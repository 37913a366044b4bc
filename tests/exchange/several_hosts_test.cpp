// Several hosts of several workers: each host has one copy of everything, and sums or factors travel between hosts.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <set>
#include <string>
#include <vector>

#include "lockstep/variable/kinds/mirrored_state.h"
#include "tests/support/host_update.h"
#include "tests/support/layer.h"

namespace lockstep {
namespace {

using testing::expect_foreign_write_is_named;
using testing::first_replica;
using testing::has_value;
using testing::is_shared;
using testing::Layer;
using testing::row_of;
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
    expect_foreign_write_is_named(strategy, 5, 90 * 70 - 1, "4, 5, 6, 7");
    return 0;
  });
}

TEST(SeveralHosts, SendTheSumOfAHostAndNotThatOfEachWorker) {
  const testing::FactoredGradientsAre factored("off");
  const auto rows = run_workers(kTwoHosts, [](Strategy& strategy) {
    const Layer layer(strategy);
    for (int step = 0; step < 3; ++step) layer.step(strategy);
    return row_of(strategy, "weight");
  });
  double kibibytes = 0;
  for (const std::string& row : rows) {
    const std::string form = "  host memory, sums between hosts  ";
    ASSERT_TRUE(has_value(row, form) && row.ends_with(" KiB")) << row;
    kibibytes += std::stod(row.substr(row.find(form) + form.size()));
  }
  EXPECT_EQ(kibibytes, 2 * 32);  // 2 (H - 1) times the weight
}

TEST(SeveralHosts, SendFactorsOnceToEachOtherHost) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const testing::FactoredGradientsAre factored("always");
  const auto trained = [](const WorkersCase& one, const char* expected) {
    return run_workers(one, [&](Strategy& strategy) {
      const Layer layer(strategy);
      for (int step = 0; step < 3; ++step) layer.step(strategy);
      const std::string row = row_of(strategy, "weight");
      EXPECT_TRUE(has_value(row, expected)) << row;
      return layer.weight.read();
    });
  };
  const torch::Tensor alone = trained({1, 8}, "factors").front();
  // 2 samples of each of two replicas, 128 + 64 numbers each and the fill of panels.
  for (const torch::Tensor& found : trained(kTwoHosts, "  host memory, factors between hosts  3.5 KiB"))
    EXPECT_TRUE(torch::equal(found, alone));
  const testing::EnvironmentScope form("LOCKSTEP_UPDATE_FORM", "host-memory");
  const WorkersCase three_hosts{.workers = 4, .replicas = 8, .hosts = {0, 1, 2, 1}};
  for (const torch::Tensor& found : trained(three_hosts, "  host memory, factors between hosts  7.0 KiB"))
    EXPECT_TRUE(torch::equal(found, alone));
}

/// The form and the bytes of the weight.
std::string travelled(const Strategy& strategy) {
  const std::string row = row_of(strategy, "weight");
  return row.substr(row.find("host memory"));
}

TEST(SeveralHosts, DescribeTheStepBeforeWhereOneFailsBeforeItsGradientsTravel) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const testing::FactoredGradientsAre factored("always");
  run_workers(kTwoHosts, [](Strategy& strategy) {
    const Layer layer(strategy);
    for (int step = 0; step < 2; ++step) layer.step(strategy);
    const std::string before = travelled(strategy);
    EXPECT_TRUE(has_value(before, "factors between hosts")) << before;
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
    EXPECT_EQ(travelled(strategy), before);
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
