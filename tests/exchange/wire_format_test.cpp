// Sums of gradients that travel between workers as bfloat16.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/comm/thread_workers.h"
#include "lockstep/lockstep.h"
#include "lockstep/strategy/strategy_access.h"
#include "tests/exchange/net_of_buckets.h"
#include "tests/support/errors.h"
#include "tests/support/factored.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::EnvironmentScope;
using testing::expect_error;
using testing::FactoredGradientsAre;
using testing::Net;
using testing::run_workers;
using testing::WorkersCase;

constexpr auto kRounded = WireFormat::kBFloat16;
constexpr int64_t kElements = 5000;  // several blocks, and one that is not full

torch::Tensor gradient_of(int64_t replica, at::ScalarType type) {
  return torch::arange(kElements, torch::kDouble).add(1 + 1000 * replica).mul(0.73).sin().to(type);
}

/// What a step with the learning rate 1 takes off variables of zeros: the sum of the gradients.
std::vector<torch::Tensor> sums(const WorkersCase& one, double clip = 0) {
  const auto all = run_workers(one, [&](Strategy& strategy) {
    const Variable single = strategy.make_variable(torch::zeros({kElements}), {.name = "single"});
    const Variable twice = strategy.make_variable(torch::zeros({kElements}, torch::kDouble), {.name = "twice"});
    const Variable none = strategy.make_variable(torch::zeros({0}), {.name = "none"});
    const Optimizer optimizer = strategy.make_optimizer({single, twice, none}, torch::optim::SGDOptions(1));
    const auto infos = strategy.run([&](ReplicaContext& ctx) {
      const int64_t r = ctx.replica_id().value();
      ((single.value(ctx) * gradient_of(r, torch::kFloat)).sum() +
       (twice.value(ctx) * gradient_of(r, torch::kDouble)).sum() + none.value(ctx).sum())
          .backward();
      StepOptions options;
      if (clip > 0) options.clip_global_norm = clip;
      return optimizer.step(ctx, options);
    });
    return std::vector<torch::Tensor>{-single.read(), -twice.read(),
                                      torch::full({}, infos.begin()->global_norm, torch::kDouble)};
  });
  for (const auto& worker : all) {
    for (std::size_t i = 0; i < worker.size(); ++i) EXPECT_TRUE(torch::equal(worker[i], all[0][i])) << i;
  }
  return all.front();
}

torch::Tensor rounded(const torch::Tensor& value) { return value.to(torch::kBFloat16).to(torch::kFloat); }

TEST(WireFormat, RoundsEachWorkersPartialSumsAndTheSum) {
  const auto g = [](int64_t r) { return gradient_of(r, torch::kFloat); };
  const auto exact = sums({1, 4});
  for (const int lanes : {1, 2}) {
    const auto two = sums({2, 4, lanes, kRounded});
    EXPECT_TRUE(torch::equal(two[0], rounded(rounded(g(0) + g(1)) + rounded(g(2) + g(3)))));
    EXPECT_TRUE(torch::equal(two[1], exact[1])) << "float64 travels as it is";
  }
  const auto four = sums({4, 4, 1, kRounded});
  EXPECT_TRUE(torch::equal(four[0], rounded((rounded(g(0)) + rounded(g(1))) + (rounded(g(2)) + rounded(g(3))))));
  // Three workers: replicas 0 and 1, 2, and 3.
  const auto three = sums({3, 4, 1, kRounded});
  EXPECT_TRUE(torch::equal(three[0], rounded(rounded(g(0) + g(1)) + (rounded(g(2)) + rounded(g(3))))));
  EXPECT_FALSE(torch::equal(four[0], exact[0]));
  EXPECT_TRUE(torch::allclose(four[0], exact[0], 0.02, 0.05)) << "8 bits of each";
}

TEST(WireFormat, OfOneWorkerRoundsNothing) {
  const auto exact = sums({1, 4});
  const auto asked = sums({1, 4, 2, kRounded});
  EXPECT_TRUE(torch::equal(asked[0], exact[0]));
  EXPECT_TRUE(torch::equal(asked[1], exact[1]));
}

TEST(WireFormat, ClipsByTheNormOfTheRoundedSums) {
  const auto plain = sums({2, 4, 1, kRounded});
  const auto clipped = sums({2, 4, 2, kRounded}, 0.5);
  const double norm =
      std::sqrt(plain[0].to(torch::kDouble).pow(2).sum().item<double>() + plain[1].pow(2).sum().item<double>());
  EXPECT_NEAR(clipped[2].item<double>(), norm, 1e-9 * norm);
  EXPECT_TRUE(torch::allclose(clipped[0], plain[0] * (0.5 / norm), 1e-5, 1e-7));
}

struct Trained {
  std::vector<torch::Tensor> values;
  std::string description;
};

/// A net of several buckets, after some steps. In `changing` steps a gradient is changed after backward.
Trained trained(const WorkersCase& one, bool changing = false) {
  const auto all = run_workers(one, [&](Strategy& strategy) {
    auto net = strategy.make_module([] { return Net(); });
    auto optimizer = strategy.make_optimizer(net, torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < 6; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        const int64_t first = 1000 * ctx.step() + 100 * ctx.replica_id().value();
        const auto x = torch::arange(70 * 40).add(first).to(torch::kFloat).mul(0.37).sin().view({70, 40});
        net(ctx)->forward(x).pow(2).mean().backward();
        if (changing && ctx.step() % 3 == 0) net(ctx)->second->weight.mutable_grad().mul_(1.5);
        optimizer.step(ctx, {.gradients_changed_on_purpose = changing});
      });
    }
    Trained result{.values = {}, .description = strategy.describe()};
    for (const Variable& variable : strategy.variables()) result.values.push_back(variable.read().clone());
    return result;
  });
  for (const Trained& worker : all) {
    for (std::size_t i = 0; i < worker.values.size(); ++i)
      EXPECT_TRUE(torch::equal(worker.values[i], all[0].values[i])) << "value " << i << ", " << one;
  }
  return all.front();
}

void expect_equal(const Trained& left, const Trained& right, const std::string& what) {
  ASSERT_EQ(left.values.size(), right.values.size());
  for (std::size_t i = 0; i < left.values.size(); ++i)
    EXPECT_TRUE(torch::equal(left.values[i], right.values[i])) << what << ", value " << i;
}

TEST(WireFormat, HasTheSameBitsWhetherSumsLeaveDuringBackwardOrNot) {
  for (const bool changing : {false, true}) {
    for (const auto& [workers, replicas, lanes] :
         std::vector<std::tuple<int64_t, int64_t, int>>{{2, 2, 1}, {3, 3, 1}, {2, 4, 1}, {2, 4, 2}}) {
      const WorkersCase one{workers, replicas, lanes, kRounded};
      const Trained during = trained(one, changing);
      const EnvironmentScope buckets("LOCKSTEP_BUCKETS", "off");
      const Trained behind = trained(one, changing);
      expect_equal(during, behind, changing ? "with changed gradients" : "with buckets and without");
      if (changing) continue;
      EXPECT_NE(during.description.find("sums as bfloat16, during backward"), std::string::npos) << during.description;
      EXPECT_EQ(behind.description.find("during backward"), std::string::npos);
      EXPECT_NE(behind.description.find("sums as bfloat16"), std::string::npos) << behind.description;
      EXPECT_NE(behind.description.find("results depend on the number of workers"), std::string::npos);
    }
  }
}

TEST(WireFormat, HasTheSameBitsOnAnyLanesAndWhereWorkersHaveMemoryInCommon) {
  const Trained one = trained({2, 6, 1, kRounded});
  expect_equal(trained({2, 6, 3, kRounded}), one, "three lanes");
  const EnvironmentScope memory("LOCKSTEP_HOST_MEMORY", "off");
  expect_equal(trained({2, 6, 2, kRounded}), one, "without memory in common");
  const Trained exact = trained({2, 6});
  EXPECT_FALSE(torch::equal(one.values[0], exact.values[0]));
}

TEST(WireFormat, LeavesFactorsAsTheyAre) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const FactoredGradientsAre factored("always");
  const auto weight = [](const WorkersCase& one) {
    return run_workers(one,
                       [](Strategy& strategy) {
                         const Variable matrix =
                             strategy.make_variable(torch::arange(128 * 64).to(torch::kFloat).sin().view({128, 64}));
                         const Optimizer optimizer = strategy.make_optimizer({matrix}, torch::optim::SGDOptions(0.1));
                         strategy.run([&](ReplicaContext& ctx) {
                           const auto x =
                               torch::arange(2 * 64).add(100 * ctx.replica_id()).to(torch::kFloat).cos().view({2, 64});
                           torch::linear(x, matrix.value(ctx)).pow(2).sum().backward();
                           optimizer.step(ctx);
                         });
                         return matrix.read();
                       })
        .front();
  };
  EXPECT_TRUE(torch::equal(weight({2, 4, 1, kRounded}), weight({1, 4})));
}

TEST(WireFormat, FindsANumberThatIsNotFiniteAllTheSame) {
  testing::expect_step_error_on_all<NonFiniteError>(
      {2, 2, 1, kRounded},
      [](Strategy& strategy) {
        const Variable one = strategy.make_variable(torch::ones({3}), {.name = "one"});
        const Optimizer optimizer = strategy.make_optimizer({one}, torch::optim::SGDOptions(0.1));
        strategy.run([&](ReplicaContext& ctx) {
          const double factor = ctx.replica_id() == 1 ? std::nan("") : 1.0;
          (one.value(ctx) * factor).sum().backward();
          optimizer.step(ctx, {.check_finite = true});
        });
      },
      "LS-NOT-FINITE", {"one", "replica 1"});
}

class WithOptions final : public Strategy {
 public:
  WithOptions(std::shared_ptr<World> world, UpdateForm form, WireFormat wire)
      : Strategy(StrategySetup{.name = "WithOptions",
                               .topology = std::make_shared<HostTopology>(testing::lanes(1), 2, false),
                               .world = std::move(world),
                               .update_form = form,
                               .wire = wire}) {}
};

template <class Body>
void on_two_workers(const Body& body) {
  ThreadWorkers workers(2, std::chrono::seconds(60));
  std::vector<std::thread> threads;
  for (int64_t w = 0; w < 2; ++w) threads.emplace_back([&body, world = workers.world(w)] { body(world); });
  for (std::thread& thread : threads) thread.join();
}

TEST(WireFormat, WithoutANameIsRefused) {
  expect_error<UsageError>([] { MultiWorkerMirroredStrategy({.wire = static_cast<WireFormat>(9)}); }, "LS-OPTION",
                           {".wire is 9"});
}

TEST(WireFormat, IsRefusedWithHostMemoryWhereNothingTravels) {
  EXPECT_NO_THROW(WithOptions(nullptr, UpdateForm::kHostMemory, kRounded)) << "one worker has no forms";
  on_two_workers([](const std::shared_ptr<World>& world) {
    expect_error<UsageError>([&] { WithOptions(world, UpdateForm::kHostMemory, kRounded); }, "LS-OPTION",
                             {"host memory", "bfloat16"});
  });
}

TEST(WireFormat, IsPartOfTheFingerprintWithWhatDecidesWhichGradientsAreSums) {
  const auto fingerprint = [](const WorkersCase& one) {
    return run_workers(one, [](Strategy& strategy) { return internal::fingerprint_of(strategy); }).front();
  };
  const std::string exact = fingerprint({2, 2});
  EXPECT_EQ(fingerprint({1, 2, 1, kRounded}), exact) << "nothing travels";
  const std::string two = fingerprint({2, 2, 1, kRounded});
  EXPECT_NE(two, exact);
  EXPECT_NE(fingerprint({4, 4, 1, kRounded}), two);
  {
    const EnvironmentScope form("LOCKSTEP_UPDATE_FORM", "sums");
    EXPECT_EQ(fingerprint({2, 2}), exact) << "it decides no bits there";
    EXPECT_NE(fingerprint({2, 2, 1, kRounded}), two);
  }
  const FactoredGradientsAre factored("off");
  EXPECT_EQ(fingerprint({2, 2}), exact);
  EXPECT_NE(fingerprint({2, 2, 1, kRounded}), two);
}

TEST(WireFormat, ThatDiffersIsNamedOnAllWorkers) {
  on_two_workers([](const std::shared_ptr<World>& world) {
    const WireFormat wire = world->worker_index() == 0 ? WireFormat::kExact : kRounded;
    expect_error<UsageError>([&] { WithOptions(world, UpdateForm::kAuto, wire); }, "LS-WORKER-ORDER",
                             {"worker 0", "worker 1", "sums travel as bfloat16"});
  });
}

}  // namespace
}  // namespace lockstep
