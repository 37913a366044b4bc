// Workers of one host that share one copy of weights and slots, of which each updates a part.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <set>
#include <string>
#include <vector>

#include "tests/support/host_update.h"

namespace lockstep {
namespace {

using testing::expect_same_in_all_forms;
using testing::first_replica;
using testing::HostMemoryIs;
using testing::is_shared;
using testing::run_workers;
using testing::wave;
using testing::WavyNet;

TEST(HostUpdate, HasOneCopyOfEverythingForAllWorkers) {
  const auto addresses = run_workers({3, 6, 2}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    EXPECT_TRUE(testing::has_value(strategy.describe(), "the first step decides"));
    net.step(strategy);
    EXPECT_TRUE(testing::has_value(strategy.describe(), "each worker updates a part of one copy"));
    std::vector<const void*> found;
    strategy.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() != first_replica(strategy)) return;
      for (const Variable& one : net.all()) found.push_back(one.value(ctx).data_ptr());
    });
    return found;
  });
  // Workers that are threads see the memory at one address.
  for (const auto& found : addresses) EXPECT_EQ(found, addresses.front());
  EXPECT_EQ(std::set<const void*>(addresses.front().begin(), addresses.front().end()).size(), 3U + 2 * 3);
}

TEST(HostUpdate, IsSwitchedOffByTheEnvironment) {
  const HostMemoryIs off("off");
  run_workers({2, 4}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    EXPECT_FALSE(is_shared(strategy));
    EXPECT_TRUE(testing::has_value(strategy.describe(), "LOCKSTEP_HOST_MEMORY is off"));
    return 0;
  });
}

TEST(HostUpdate, RefusesAnotherWordInTheEnvironment) {
  const HostMemoryIs wrong("sometimes");
  run_workers({2, 2}, [](Strategy& strategy) {
    testing::expect_error<UsageError>([&] { const WavyNet net(strategy); }, "LS-ENVIRONMENT",
                                      {"LOCKSTEP_HOST_MEMORY", "sometimes"});
    return 0;
  });
}

TEST(HostUpdate, IsLeftOutWhereAVariableCannotShareIt) {
  run_workers({2, 4}, [](Strategy& strategy) {
    const Variable half = strategy.make_variable(torch::ones({5}, torch::kBFloat16), {.name = "half"});
    const Optimizer optimizer = strategy.make_optimizer({half}, torch::optim::SGDOptions(0.5));
    strategy.run([&](ReplicaContext& ctx) {
      half.value(ctx).sum().backward();
      optimizer.step(ctx);
    });
    EXPECT_FALSE(is_shared(strategy));
    EXPECT_TRUE(testing::has_value(strategy.describe(), "'half' is BFloat16"));
    EXPECT_EQ(half.read()[0].item<float>(), -1);
    return 0;
  });
}

TEST(HostUpdate, GivesTheSameBitsWithClippingAndTheCheckOfGradients) {
  expect_same_in_all_forms([](Strategy& strategy) {
    const WavyNet net(strategy);
    std::vector<std::string> found;
    for (int step = 0; step < 4; ++step) {
      StepOptions options{.check_finite = step % 2 == 1};
      if (step >= 2) options.clip_global_norm = 0.5;
      double norm = 0;
      strategy.run([&](ReplicaContext& ctx) {
        net.loss(ctx).backward();
        const StepInfo info = net.optimizer.step(ctx, options);
        if (ctx.replica_id() == first_replica(strategy)) norm = info.global_norm;
      });
      found.push_back(std::to_string(norm) + net.digest());
    }
    return found;
  });
}

TEST(HostUpdate, GivesTheSameBitsWithAbsentAndFrozenGradients) {
  expect_same_in_all_forms([](Strategy& strategy) {
    const WavyNet net(strategy);
    std::vector<std::string> found;
    for (int step = 0; step < 6; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        net.b.value(ctx).requires_grad_(step != 3);
        auto loss = net.c.value(ctx).pow(2).sum();
        if (step % 2 == 0) loss = net.loss(ctx);                                       // all have all gradients
        if (step == 1 && ctx.replica_id() == 2) loss = loss + net.a.value(ctx).sum();  // one replica has one of a
        loss.backward();
        net.optimizer.step(ctx);
      });
      found.push_back(net.digest());
    }
    return found;
  });
}

TEST(HostUpdate, LetsEveryOtherWriteStandBetweenSteps) {
  expect_same_in_all_forms([](Strategy& strategy) {
    const WavyNet net(strategy);
    const Variable counted =
        strategy.make_variable(torch::zeros({3}), {.name = "n", .aggregation = VariableAggregation::kSum});
    const Optimizer second = strategy.make_optimizer({counted}, torch::optim::SGDOptions(0.1));
    const auto average = strategy.make_moving_average({net.a, net.c}, {.decay = 0.5});
    std::vector<std::string> found;
    const auto step = [&] {
      strategy.run([&](ReplicaContext& ctx) {
        (net.loss(ctx) + counted.value(ctx).pow(2).sum()).backward();
        net.optimizer.step(ctx);
        second.step(ctx);
        average.update(ctx);
      });
      found.push_back(net.digest() + sha256_of({{"n", counted.read()}}));
    };
    step();
    net.a.assign_add(torch::ones({90, 70}));
    found.push_back(net.digest());
    net.a.assign_add(torch::ones({90, 70}));
    step();
    net.b.assign(wave(1, 9, 5).view({9}));
    step();
    strategy.update(net.c, [](torch::Tensor& value) { value.mul_(0.5); });
    step();
    strategy.run([&](ReplicaContext& ctx) { counted.assign_add(ctx, torch::ones({3})); });
    step();
    const auto saved = net.optimizer.state();
    step();
    net.optimizer.load(saved);
    step();
    {
      const auto swapped = average.swap();
      found.push_back(net.digest());
    }
    found.push_back(net.digest());
    step();
    std::vector<std::vector<torch::Tensor>> values;
    for (const StateItem& item : strategy.state_items()) values.push_back(item.read());
    step();
    std::size_t next = 0;
    for (const StateItem& item : strategy.state_items()) item.write(values[next++]);
    found.push_back(net.digest());
    step();
    return found;
  });
}

TEST(HostUpdate, SharesAgainAfterAWriteAndSaysSo) {
  run_workers({2, 4}, [](Strategy& strategy) {
    const Variable one = strategy.make_variable(wave(70, 60), {.name = "one"});
    const Optimizer optimizer = strategy.make_optimizer({one}, torch::optim::SGDOptions(0.5));
    const auto step = [&] {
      strategy.run([&](ReplicaContext& ctx) {
        one.value(ctx).sum().backward();
        optimizer.step(ctx);
      });
    };
    EXPECT_FALSE(is_shared(strategy));
    step();
    EXPECT_TRUE(is_shared(strategy));
    one.assign(torch::zeros({70, 60}));
    EXPECT_FALSE(is_shared(strategy)) << "workers would write the same memory";
    step();
    EXPECT_TRUE(is_shared(strategy));
    EXPECT_EQ(one.read()[0][0].item<float>(), -2);
    return 0;
  });
}

TEST(HostUpdate, TwoOptimizersOfOneVariableShareItsMemory) {
  expect_same_in_all_forms([](Strategy& strategy) {
    const WavyNet net(strategy);
    const Optimizer second = strategy.make_optimizer({net.c, net.a}, torch::optim::SGDOptions(0.01).momentum(0.9));
    std::vector<std::string> found;
    for (int step = 0; step < 5; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        net.loss(ctx).backward();
        if (step != 1) net.optimizer.step(ctx);
        if (step != 2) {
          net.loss(ctx).backward();
          second.step(ctx);
        }
        net.optimizer.zero_grad(ctx);
      });
      found.push_back(net.digest());
    }
    return found;
  });
}

TEST(HostUpdate, AnOptimizerThatUpdatesAllOnEachWorkerLeavesTheSharedMemory) {
  expect_same_in_all_forms(
      [](Strategy& strategy) {
        const WavyNet net(strategy);
        const Variable half = strategy.make_variable(torch::ones({5}, torch::kBFloat16), {.name = "half"});
        const Optimizer other = strategy.make_optimizer({net.a, half}, torch::optim::SGDOptions(0.25));
        std::vector<std::string> found;
        for (int step = 0; step < 4; ++step) {
          net.step(strategy);
          strategy.run([&](ReplicaContext& ctx) {
            (net.a.value(ctx).sum() + half.value(ctx).sum().to(torch::kFloat)).backward();
            other.step(ctx);
          });
          found.push_back(net.digest());
        }
        return found;
      },
      /*can_ask=*/false);
}

TEST(HostUpdate, LetsTensorsThatTheProgramHasFollow) {
  run_workers({2, 4}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    torch::Tensor alias;
    strategy.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() == first_replica(strategy)) alias = net.a.value(ctx).detach().view({-1});
    });
    for (int step = 0; step < 3; ++step) {
      net.step(strategy);
      EXPECT_TRUE(torch::equal(alias, net.a.read().view({-1})));
    }
    return 0;
  });
}

TEST(HostUpdate, StaysWhereTheOptimizerAndTheStrategyAreGone) {
  const auto kept = run_workers({2, 4}, [](Strategy& strategy) {
    torch::Tensor alias;
    {
      const WavyNet net(strategy);
      net.step(strategy);
      strategy.run([&](ReplicaContext& ctx) {
        if (ctx.replica_id() == first_replica(strategy)) alias = net.a.value(ctx).detach();
      });
    }
    return alias;
  });
  for (const torch::Tensor& one : kept) EXPECT_TRUE(torch::equal(one, kept.front()));
}

}  // namespace
}  // namespace lockstep
