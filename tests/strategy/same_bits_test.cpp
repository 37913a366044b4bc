// V replicas give the same bits on any number of lanes and workers, in both copy modes, and other bits where they must.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tests/support/factored.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::Outcome;
using testing::Plan;
using testing::train;

/// Numbers of lanes to try: small ones, which need not divide the replicas, and one for each replica.
std::vector<int> lanes_to_try(int64_t replicas) {
  std::vector<int> result;
  for (const int64_t lanes : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}, replicas}) {
    if (lanes <= replicas && (result.empty() || lanes > result.back())) result.push_back(static_cast<int>(lanes));
  }
  return result;
}

class SameBits : public ::testing::TestWithParam<Plan> {};

TEST_P(SameBits, OnEveryNumberOfLanesAndInBothCopyModes) {
  Plan plan = GetParam();
  const Outcome expected = [&] {
    const testing::FactoredGradientsAre factored("off");
    return train(plan);
  }();
  bool keeps_factors = false;  // in turn: left alone, these weights are too small
  for (const int lanes : lanes_to_try(plan.replicas)) {
    for (const Copies copies : {Copies::kPerMemory, Copies::kPerReplica}) {
      if (lanes == 1 && copies == Copies::kPerMemory) continue;
      // Every replica has a copy of its own wherever its lane is: the two extremes show it.
      if (copies == Copies::kPerReplica && lanes != 1 && lanes != plan.replicas) continue;
      plan.lanes = lanes;
      plan.copies = copies;
      keeps_factors = !keeps_factors;
      const testing::FactoredGradientsAre factored(keeps_factors ? "always" : "off");
      EXPECT_EQ(train(plan), expected) << plan << (keeps_factors ? ", with factors" : "");
    }
  }
}

std::vector<Plan> plans() {
  std::vector<Plan> all;
  // 200 steps for each number of replicas, with dropout and short last batches.
  for (const int64_t replicas : {3, 5, 6, 7, 8, 12})
    all.push_back({.program = "mlp", .replicas = replicas, .steps = 200});
  // Each optimizer.
  for (const char* optimizer :
       {"sgd", "momentum", "nesterov", "adam", "amsgrad", "adamw", "rmsprop", "centered", "adagrad"}) {
    all.push_back({.program = "mlp", .optimizer = optimizer, .replicas = 6, .steps = 30});
  }
  // Each kind of model: batch normalisation, a weight used twice, an embedding with tied weights, float64.
  for (const char* program : {"cnn", "twice", "embedding", "double"}) {
    all.push_back({.program = program, .replicas = 8, .steps = 200});
  }
  // Clipping, accumulation, evaluation between steps, replicas without samples.
  all.push_back({.program = "mlp", .replicas = 7, .steps = 60, .clip = 0.3});
  all.push_back({.program = "cnn", .replicas = 6, .steps = 60, .accumulate = 2});
  all.push_back({.program = "cnn", .replicas = 6, .steps = 60, .evaluate_between = true});
  all.push_back({.program = "mlp", .replicas = 12, .steps = 60, .global_batch = 5});
  all.push_back({.program = "mlp", .replicas = 1, .steps = 20});
  return all;
}

TEST_P(SameBits, WithAndWithoutFactorsAndProductsOfOurOwn) {
  Plan plan = GetParam();
  plan.lanes = static_cast<int>(std::min<int64_t>(2, plan.replicas));
  const auto trained = [&](const char* value) {
    const testing::FactoredGradientsAre factored(value);
    const testing::FewSamplesProductsAre products(value);
    return train(plan);
  };
  EXPECT_EQ(trained("always"), trained("off"));
}

TEST_P(SameBits, OnEveryNumberOfWorkersInEachForm) {
  Plan plan = GetParam();
  plan.steps = std::min(plan.steps, 30);
  const auto trained = [&](int64_t workers, const char* factored_gradients, const char* host_memory) {
    const testing::FactoredGradientsAre factored(factored_gradients);
    const testing::EnvironmentScope memory("LOCKSTEP_HOST_MEMORY", host_memory);
    return testing::run_workers(
        {workers, plan.replicas, static_cast<int>(std::min<int64_t>(2, plan.replicas / workers))},
        [&](Strategy& strategy) { return train(strategy, plan); });
  };
  const Outcome expected = trained(1, "off", "off").front();
  for (const int64_t workers : {2, 3, 4, 8}) {
    if (workers > plan.replicas) continue;
    for (const char* factored : {"off", "always"}) {
      for (const char* memory : {"auto", "off"}) {
        // All of them for two workers; for more, each value of each.
        const bool both_off_or_none = (std::string_view(factored) == "off") == (std::string_view(memory) == "off");
        if (workers > 2 && both_off_or_none != (workers != 4)) continue;
        for (const Outcome& found : trained(workers, factored, memory)) {
          EXPECT_EQ(found, expected) << plan << ", " << workers << " workers, factors " << factored
                                     << ", memory of the host " << memory;
        }
      }
    }
  }
  if (plan.replicas < 4) return;
  for (const char* factored : {"off", "always"}) {
    const testing::FactoredGradientsAre factoring(factored);
    const testing::WorkersCase hosts{.workers = 4, .replicas = plan.replicas, .hosts = {0, 0, 1, 1}};
    for (const Outcome& found : testing::run_workers(hosts, [&](Strategy& one) { return train(one, plan); }))
      EXPECT_EQ(found, expected) << plan << ", factors " << factored << hosts;
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, SameBits, ::testing::ValuesIn(plans()));

TEST(Bits, AreNotMovedByEvaluation) {
  Plan plan{.program = "mlp", .replicas = 4, .steps = 40};
  const Outcome without = train(plan);
  plan.evaluate_between = true;
  EXPECT_EQ(train(plan), without);
}

TEST(Bits, DifferForAnotherSeedNumberOfReplicasOrOptimizer) {
  const Plan plan{.program = "mlp", .replicas = 4, .steps = 20};
  const Outcome base = train(plan);
  const auto differs = [&](auto change) {
    Plan other = plan;
    change(other);
    return train(other).weights != base.weights;
  };
  EXPECT_TRUE(differs([](Plan& p) { p.seed = 8; }));
  EXPECT_TRUE(differs([](Plan& p) { p.replicas = 8; }));
  EXPECT_TRUE(differs([](Plan& p) { p.optimizer = "adam"; }));
  EXPECT_TRUE(differs([](Plan& p) { p.clip = 0.1; }));
  EXPECT_EQ(train(plan), base);
}

TEST(Bits, OfOneDeviceAreThoseOfOneMirroredReplica) {
  const Outcome mirrored = train({.program = "cnn", .replicas = 1, .steps = 20});
  OneDeviceStrategy strategy({.seed = 7});
  const auto model = strategy.make_module([] { return testing::make_program("cnn"); });
  const auto optimizer = testing::make_optimizer(strategy, model, "adamw");
  const auto data = strategy.distribute(testing::make_data("cnn", 100), {.global_batch = 22, .shuffle = true});
  int done = 0;
  for (int64_t epoch = 0; done < 20; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      if (done++ == 20) break;
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(model(ctx)->loss(part.input, part.target)).backward();
        optimizer.step(ctx);
      });
    }
  }
  std::vector<std::pair<std::string, torch::Tensor>> weights;
  for (const Variable& variable : model.variables()) {
    if (variable.synchronization() == VariableSynchronization::kOnWrite)
      weights.emplace_back(variable.name(), variable.read());
  }
  EXPECT_EQ(sha256_of(weights), mirrored.weights);
}

/// The gradient rule: V replicas on uneven and empty parts against stock LibTorch on the whole batch.
TEST(OneGradientRule, FourReplicasWithSgdAreStockLibTorchOnTheWholeBatch) {
  for (const int64_t global_batch : {22, 3}) {
    MirroredStrategy strategy({.devices = testing::lanes(2), .replicas = 4, .seed = 7});
    const auto model = strategy.make_module([] { return testing::make_program("twice"); });
    const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
    const auto stock = model.export_module();
    torch::optim::SGD stock_optimizer(stock->parameters(), torch::optim::SGDOptions(0.05));
    const auto data =
        strategy.distribute(testing::make_data("twice", 100), {.global_batch = global_batch, .shuffle = true});
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      for (const auto& batch : data.epoch(epoch)) {
        const auto losses = strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          auto loss = ctx.scale_loss(model(ctx)->loss(part.input, part.target));
          loss.backward();
          optimizer.step(ctx);
          return loss.detach();
        });
        const auto input = strategy.gather(PerReplica<torch::Tensor>(
            strategy.local_results(strategy.per_replica([&](ReplicaId r) { return batch[r].input; }))));
        const auto target = strategy.gather(strategy.per_replica([&](ReplicaId r) { return batch[r].target; }));
        stock_optimizer.zero_grad();
        auto loss = stock->loss(input, target);
        loss.backward();
        stock_optimizer.step();
        EXPECT_NEAR(strategy.reduce(Reduction::kSum, losses).item<double>(), loss.item<double>(), 1e-5);
      }
    }
    const auto state = model.state();
    for (const auto& item : stock->named_parameters()) {
      const auto difference = (state.at(item.key()) - item.value().detach()).norm() / item.value().detach().norm();
      EXPECT_LE(difference.item<double>(), 1e-5) << item.key();
    }
  }
}

}  // namespace
}  // namespace lockstep
