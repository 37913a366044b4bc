// Workers that are threads of one process: with any number of workers, a strategy's calls work over all replicas and
// give the bits of one worker.
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::PerWorker;
using testing::run_workers;
using testing::value_of;
using testing::values_of;
using Case = testing::WorkersCase;
using Named = std::map<std::string, torch::Tensor>;

void expect_same(const PerWorker<Named>& all, const Named& expected, const Case& one) {
  for (std::size_t w = 0; w < all.size(); ++w) {
    ASSERT_EQ(all[w].size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      const torch::Tensor& found = all[w].at(name);
      EXPECT_EQ(sha256_of({{name, found}}), sha256_of({{name, tensor}})) << one << ", worker " << w << ", " << name;
    }
  }
}

/// Runs on one worker and on several, which must give the same on each.
void expect_bits_of_one_worker(const std::function<Named(Strategy&)>& body,
                               const std::shared_ptr<const Reducer>& reducer = nullptr) {
  for (const int64_t replicas : {8, 7}) {
    const Named expected = run_workers({1, replicas, 1}, body, reducer).front();
    for (const Case& one : {Case{1, replicas, 2}, Case{2, replicas, 1}, Case{2, replicas, 2}, Case{3, replicas, 1},
                            Case{3, replicas, 2}, Case{4, replicas, 1}}) {
      expect_same(run_workers(one, body, reducer), expected, one);
    }
  }
}

TEST(Workers, HaveTheReplicasInBlocksOfTheWholeRun) {
  const auto ids = run_workers({3, 8, 1}, [](Strategy& strategy) {
    EXPECT_EQ(strategy.num_replicas(), 8);
    EXPECT_EQ(strategy.num_workers(), 3);
    EXPECT_EQ(strategy.is_chief(), strategy.worker_index() == 0);
    std::vector<int64_t> mine;
    for (const ReplicaId id : strategy.run([](ReplicaContext& ctx) { return ctx.replica_id(); })) mine.push_back(id);
    return mine;
  });
  EXPECT_EQ(ids, (PerWorker<std::vector<int64_t>>{{0, 1, 2}, {3, 4, 5}, {6, 7}}));
}

TEST(Workers, ReduceWithTheBitsOfOne) {
  expect_bits_of_one_worker([](Strategy& strategy) {
    Named named;
    for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kInt, torch::kByte}) {
      const auto values = values_of(strategy, type);
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMin, Reduction::kMax}) {
        const std::string name = std::string(name_of(reduction)) + " of " + c10::toString(type);
        named[name] = strategy.reduce(reduction, values);
        named[name + ", axis 0"] = strategy.reduce(reduction, values, 0);
        named[name + ", all axes"] = strategy.reduce(reduction, values, {0, 1});
      }
    }
    return named;
  });
}

TEST(Workers, ReducePartsOfDifferentSizesToTheTrueMean) {
  expect_bits_of_one_worker([](Strategy& strategy) {
    const auto parts =
        strategy.per_replica([](ReplicaId r) { return value_of(r, torch::kFloat, {15}).narrow(0, 0, r % 4); });
    return Named{{"mean", strategy.reduce(Reduction::kMean, parts, 0)},
                 {"max", strategy.reduce(Reduction::kMax, parts, 0)}};
  });
}

TEST(Workers, GatherAndBroadcastWithTheBitsOfOne) {
  expect_bits_of_one_worker([](Strategy& strategy) {
    const auto parts =
        strategy.per_replica([](ReplicaId r) { return value_of(r, torch::kFloat).narrow(0, 0, 1 + r % 3); });
    Named named{{"gather", strategy.gather(parts, 0)}};
    for (int64_t from = 0; from < strategy.num_replicas(); ++from) {
      // What workers give who do not have the replica is not looked at.
      const bool here =
          from >= parts.first_replica() && from < parts.first_replica() + static_cast<int64_t>(parts.size());
      named["broadcast " + std::to_string(from)] =
          strategy.broadcast(from, here ? parts[from] : torch::full({2}, 99.0));
    }
    return named;
  });
}

TEST(Workers, UpdateAVariableFromAnyReplica) {
  expect_bits_of_one_worker([](Strategy& strategy) {
    const Variable variable = strategy.make_variable(torch::zeros({3, 5}), {.name = "v"});
    Named named;
    for (int64_t from = 0; from < strategy.num_replicas(); ++from) {
      const auto values = values_of(strategy, torch::kFloat);
      const bool here =
          from >= values.first_replica() && from < values.first_replica() + static_cast<int64_t>(values.size());
      strategy.update_from(from, variable, here ? values[from] : torch::full({3, 5}, 99.0));
      named["from " + std::to_string(from)] = variable.read();
    }
    return named;
  });
}

TEST(Workers, ReadOnReadVariablesOfAllReplicas) {
  expect_bits_of_one_worker([](Strategy& strategy) {
    Named named;
    for (const auto aggregation :
         {VariableAggregation::kSum, VariableAggregation::kMean, VariableAggregation::kOnlyFirstReplica}) {
      const std::string name = "v" + std::to_string(static_cast<int>(aggregation));
      const Variable variable = strategy.make_variable(
          torch::zeros({3, 5}),
          {.name = name, .synchronization = VariableSynchronization::kOnRead, .aggregation = aggregation});
      strategy.run([&](ReplicaContext& ctx) { variable.assign(ctx, value_of(ctx.replica_id(), torch::kFloat)); });
      named[name] = variable.read();
      variable.assign_add(torch::ones({3, 5}));
      named[name + " added to"] = variable.read();
    }
    return named;
  });
}

TEST(Workers, AssignInAStepWhatAllReplicasGive) {
  expect_bits_of_one_worker([](Strategy& strategy) {
    Named named;
    for (const auto aggregation :
         {VariableAggregation::kSum, VariableAggregation::kMean, VariableAggregation::kOnlyFirstReplica}) {
      const std::string name = "v" + std::to_string(static_cast<int>(aggregation));
      const Variable variable = strategy.make_variable(torch::ones({3, 5}), {.name = name, .aggregation = aggregation});
      strategy.run([&](ReplicaContext& ctx) { variable.assign_add(ctx, value_of(ctx.replica_id(), torch::kFloat)); });
      named[name] = variable.read();
    }
    return named;
  });
}

TEST(Workers, MeetInCollectivesWithTheBitsOfOne) {
  expect_bits_of_one_worker([](Strategy& strategy) {
    const auto results = strategy.run([](ReplicaContext& ctx) {
      const int64_t r = ctx.replica_id();
      Named named;
      for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kInt}) {
        for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMin, Reduction::kMax}) {
          named[std::string(name_of(reduction)) + " of " + c10::toString(type)] =
              ctx.all_reduce(reduction, value_of(r, type));
        }
      }
      const auto list = ctx.all_reduce(
          Reduction::kSum, std::vector<torch::Tensor>{value_of(r, torch::kFloat), value_of(r, torch::kDouble)});
      named["list 0"] = list[0];
      named["list 1"] = list[1];
      named["large"] = ctx.all_reduce(Reduction::kMean, value_of(r, torch::kFloat).repeat({200, 10}));
      named["gathered"] = ctx.all_gather(value_of(r, torch::kFloat).narrow(0, 0, 1 + r % 3), 0);
      named["broadcast"] = ctx.broadcast(ctx.num_replicas() - 1, value_of(r, torch::kFloat));
      named["merged"] = ctx.merge_call(
          [](Strategy& all, const PerReplica<torch::Tensor>& values) { return all.reduce(Reduction::kSum, values); },
          value_of(r, torch::kFloat));
      return named;
    });
    for (const Named& other : results) {
      for (const auto& [name, tensor] : *results.begin()) EXPECT_TRUE(torch::equal(other.at(name), tensor)) << name;
    }
    return *results.begin();
  });
}

TEST(Workers, DifferentiateThroughCollectives) {
  expect_bits_of_one_worker([](Strategy& strategy) {
    const auto gradients = strategy.run([](ReplicaContext& ctx) {
      torch::Tensor x = value_of(ctx.replica_id(), torch::kFloat).requires_grad_();
      torch::Tensor y = value_of(ctx.replica_id() + 1, torch::kFloat).requires_grad_();
      const auto sums = ctx.all_reduce(Reduction::kMean, std::vector<torch::Tensor>{x * x, y.sin()});
      const auto largest = ctx.all_reduce(Reduction::kMax, x);
      const auto all = ctx.all_gather(y, 1);
      ((sums[0] * sums[1]).sum() + (largest * largest).sum() + all.pow(3).sum()).backward();
      return torch::stack({x.grad(), y.grad()});
    });
    return Named{{"gradients", strategy.gather(gradients, 0)}};
  });
}

/// A reducer with an order of its own: the last replica first.
class Backwards final : public Reducer {
 public:
  std::string describe() const override { return "backwards"; }
  at::Tensor reduce(Reduction reduction, std::span<const at::Tensor> values) const override {
    std::vector<at::Tensor> turned(values.rbegin(), values.rend());
    return tree_.reduce(reduction, turned);
  }

 private:
  TreeReducer tree_;
};

TEST(Workers, GiveAReducerOfTheUsersTheValuesOfAllReplicas) {
  expect_bits_of_one_worker(
      [](Strategy& strategy) {
        const auto sums = strategy.run([](ReplicaContext& ctx) {
          return ctx.all_reduce(Reduction::kSum, value_of(ctx.replica_id(), torch::kFloat));
        });
        return Named{{"outside", strategy.reduce(Reduction::kSum, values_of(strategy, torch::kFloat))},
                     {"inside", *sums.begin()}};
      },
      std::make_shared<Backwards>());
}

/// Five steps on samples of which each replica has its part, and the weights, slots and losses that they leave.
template <class Options>
Named trained(Strategy& strategy, const Options& options, std::optional<double> clip) {
  auto model = strategy.make_module([] {
    return torch::nn::Sequential(torch::nn::Linear(5, 9), torch::nn::Dropout(0.25), torch::nn::Tanh(),
                                 torch::nn::Linear(9, 2));
  });
  const Optimizer optimizer = strategy.make_optimizer(model, options);
  const auto samples = torch::cat({value_of(1, torch::kFloat), value_of(2, torch::kFloat), value_of(3, torch::kFloat),
                                   value_of(4, torch::kFloat)});  // 12 rows: parts of different sizes
  Named named;
  for (int step = 0; step < 5; ++step) {
    const auto parts = strategy.split(samples.roll(step, 0), samples.narrow(1, 0, 2).sin());
    const auto losses = strategy.run(parts, [&](ReplicaContext& ctx, const Batch& batch) {
      const auto loss = torch::mse_loss(model(ctx)->forward(batch.input), batch.target);
      ctx.scale_loss(loss).backward();
      const StepInfo info = optimizer.step(ctx, {.clip_global_norm = clip});
      EXPECT_TRUE(info.applied);
      return torch::stack({loss.detach().to(torch::kDouble), torch::scalar_tensor(info.global_norm, torch::kDouble)});
    });
    named["loss and norm " + std::to_string(step)] = strategy.gather(losses);
  }
  for (const auto& [name, value] : model.state()) named[name] = value;
  for (const auto& [name, value] : optimizer.state()) named[name] = value;
  return named;
}

TEST(Workers, TrainWithTheBitsOfOne) {
  expect_bits_of_one_worker([](Strategy& strategy) {
    return trained(strategy, torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true), {});
  });
  expect_bits_of_one_worker(
      [](Strategy& strategy) { return trained(strategy, torch::optim::AdamWOptions(0.01), 0.05); });
}

TEST(Workers, TrainAVariableOfWhichOnlySomeWorkersHaveAGradient) {
  expect_bits_of_one_worker([](Strategy& strategy) {
    const Variable all = strategy.make_variable(value_of(1, torch::kFloat), {.name = "all"});
    const Variable last = strategy.make_variable(value_of(2, torch::kFloat), {.name = "last"});
    const Variable none = strategy.make_variable(value_of(3, torch::kFloat), {.name = "none"});
    const Optimizer optimizer = strategy.make_optimizer({all, last, none}, torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        const torch::Tensor own = value_of(ctx.replica_id(), torch::kFloat);
        torch::Tensor loss = (all.value(ctx) * own).pow(2).sum();
        if (ctx.replica_id() == ctx.num_replicas() - 1) loss = loss + (last.value(ctx) * own).sum();
        loss.backward();
        optimizer.step(ctx);
      });
    }
    EXPECT_EQ(optimizer.state().at("none/step").item<int64_t>(), 0);
    return Named{{"all", all.read()},
                 {"last", last.read()},
                 {"none", none.read()},
                 {"momentum", optimizer.state().at("last/momentum_buffer")}};
  });
}

}  // namespace
}  // namespace lockstep
