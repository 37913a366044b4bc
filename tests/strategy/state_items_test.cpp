// The list of a run's state, from which another strategy continues the run bit for bit.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using Kind = StateItem::Kind;

std::string digest_of(const Strategy& strategy) {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const StateItem& item : strategy.state_items()) {
    for (const at::Tensor& value : item.read()) named.emplace_back(item.name, value);
  }
  return sha256_of(named);
}

/// A training program with every kind of state: dropout, batch normalisation, two optimizers over one variable, an
/// on-read variable and moving averages.
struct TrainingRun {
  explicit TrainingRun(int64_t replicas = 3, uint64_t seed = 5)
      : strategy({.devices = testing::lanes(1), .replicas = replicas, .seed = seed}),
        model(strategy.make_module([] {
          return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6), torch::nn::Dropout(0.3),
                                       torch::nn::Linear(6, 2));
        })),
        adam(strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-2))),
        momentum(strategy.make_optimizer({model.variables().front()}, torch::optim::SGDOptions(1e-3).momentum(0.9))),
        average(strategy.make_moving_average(model)),
        seen(strategy.make_variable(torch::zeros({}), {.name = "seen",
                                                       .synchronization = VariableSynchronization::kOnRead,
                                                       .aggregation = VariableAggregation::kSum})) {}

  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      strategy.run([&](ReplicaContext& ctx) {
        const auto loss = [&] {
          const auto output = model(ctx)->forward(torch::rand({5, 4}));
          ctx.scale_loss(output.square().mean(), 5, 5 * ctx.num_replicas()).backward();
        };
        loss();
        adam.step(ctx);
        loss();
        momentum.step(ctx);
        average.update(ctx);
        adam.zero_grad(ctx);
        seen.assign_add(ctx, torch::ones({}));
      });
      strategy.evaluate([&](ReplicaContext&) { torch::rand({1}); });
    }
  }

  std::string digest() const { return digest_of(strategy); }

  MirroredStrategy strategy;
  Replicated<torch::nn::Sequential> model;
  Optimizer adam;
  Optimizer momentum;
  MovingAverage average;
  Variable seen;
};

/// Training on a data set that has a name, one epoch after the other.
struct TrainingOnData {
  explicit TrainingOnData(int64_t replicas)
      : strategy({.devices = testing::lanes(1), .replicas = replicas, .seed = 5}),
        model(strategy.make_module([] { return torch::nn::Linear(3, 1); })),
        adam(strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-2))),
        data(strategy.distribute(
            data::from_tensors(torch::arange(66).to(torch::kFloat).view({22, 3}) / 66, torch::arange(22)),
            {.global_batch = 5, .shuffle = true, .name = "train"})) {}

  void steps(int count) {
    for (int64_t epoch = data.cursor().epoch; count > 0; ++epoch) {
      for (const auto& batch : data.epoch(epoch)) {
        strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          ctx.scale_loss((model(ctx)->forward(part.input).squeeze(1) - part.target).square().mean()).backward();
          adam.step(ctx);
        });
        if (--count == 0) break;
      }
    }
  }

  std::string digest() const { return digest_of(strategy); }

  MirroredStrategy strategy;
  Replicated<torch::nn::Linear> model;
  Optimizer adam;
  DistributedDataset data;
};

template <class Run>
void copy_state(const Run& from, const Run& to) {
  std::map<std::pair<Kind, std::string>, StateItem> targets;
  for (StateItem& item : to.strategy.state_items()) targets[{item.kind, item.name}] = std::move(item);
  for (const StateItem& item : from.strategy.state_items()) targets.at({item.kind, item.name}).write(item.read());
}

TEST(StateItems, ContinueARunWithTheBitsOfTheOneThatNeverStopped) {
  TrainingRun whole;
  whole.steps(7);
  TrainingRun first;
  first.steps(4);
  first.adam.set_learning_rate(1e-2);
  TrainingRun second;
  second.steps(1);  // what it did before does not matter
  copy_state(first, second);
  EXPECT_EQ(second.digest(), first.digest());
  second.steps(3);
  EXPECT_EQ(second.digest(), whole.digest());
}

TEST(StateItems, ContinueInTheMiddleOfAnEpochWithTheSamplesThatWereNotUsed) {
  TrainingOnData whole(3);
  whole.steps(13);
  for (const int stop : {0, 1, 4, 5, 7, 12}) {
    TrainingOnData first(3);
    first.steps(stop);
    TrainingOnData second(3);
    second.steps(2);  // what it did before does not matter
    copy_state(first, second);
    EXPECT_EQ(second.data.cursor(), first.data.cursor());
    second.steps(13 - stop);
    EXPECT_EQ(second.digest(), whole.digest()) << stop;
    EXPECT_EQ(second.data.cursor(), whole.data.cursor());
  }
}

TEST(StateItems, HaveTheCursorsOfLivingDataSetsThatHaveAName) {
  TrainingOnData run(2);
  const auto cursors = [&] {
    std::vector<std::string> names;
    for (const StateItem& item : run.strategy.state_items()) {
      if (item.kind == Kind::kCursor) names.push_back(item.name);
    }
    return names;
  };
  const Dataset samples = data::from_tensors(torch::zeros({4, 1}), torch::zeros({4}));
  const auto unnamed = run.strategy.distribute(samples, {.global_batch = 2});
  EXPECT_EQ(cursors(), std::vector<std::string>{"train"});
  {
    const auto validation = run.strategy.distribute(samples, {.global_batch = 2, .name = "validation"});
    EXPECT_EQ(cursors(), (std::vector<std::string>{"train", "validation"}));
    testing::expect_error<UsageError>(
        [&] { run.strategy.distribute(samples, {.global_batch = 2, .name = "validation"}); }, "LS-NAME-TAKEN",
        {"validation"});
  }
  EXPECT_EQ(cursors(), std::vector<std::string>{"train"});
  const auto again = run.strategy.distribute(samples, {.global_batch = 1, .name = "validation"});
  EXPECT_EQ(cursors(), (std::vector<std::string>{"train", "validation"}));
}

TEST(StateItems, RefuseACursorOfOtherDataAndChangeNothing) {
  TrainingOnData run(2);
  run.steps(3);
  const data::Cursor before = run.data.cursor();
  for (const StateItem& item : run.strategy.state_items()) {
    if (item.kind != Kind::kCursor) continue;
    for (const auto& value : {torch::zeros({3}, torch::kLong), torch::zeros({5}), torch::zeros({5, 1}, torch::kLong),
                              torch::Tensor(), torch::zeros({5}, torch::device(torch::kMeta).dtype(torch::kLong))}) {
      testing::expect_error<UsageError>([&] { item.write({value}); }, "LS-STATE-MISFIT", {"'train'"});
    }
    testing::expect_error<DataError>(
        [&] {
          item.write({torch::tensor({int64_t{0}, int64_t{0}, int64_t{7}, int64_t{5}, int64_t{1}})});
        },
        "LS-DATA-CHANGED", {"7", "22"});
  }
  EXPECT_EQ(run.data.cursor(), before);
}

TEST(StateItems, HaveNamesThatNoOtherOfTheirKindHas) {
  const TrainingRun run;
  std::set<std::pair<Kind, std::string>> names;
  for (const StateItem& item : run.strategy.state_items()) {
    EXPECT_TRUE(names.insert({item.kind, item.name}).second) << item.name;
  }
  for (const auto& name :
       {std::pair{Kind::kMirrored, "model.0.weight"}, std::pair{Kind::kOnRead, "model.1.running_var"},
        std::pair{Kind::kSlot, "model.0.weight/exp_avg"}, std::pair{Kind::kStepCount, "model.0.weight/step"},
        std::pair{Kind::kLearningRate, "optimizer/learning_rate/0"}, std::pair{Kind::kNumber, "step"}}) {
    EXPECT_TRUE(names.contains({name.first, name.second})) << name.second;
  }
}

TEST(StateItems, GiveAVariablesOwnValueWhileAnAverageStandsInForIt) {
  TrainingRun run;
  run.steps(3);
  const std::string before = run.digest();
  const SwapScope scope = run.average.swap();
  EXPECT_EQ(run.digest(), before);
}

TEST(StateItems, RefuseWhatDoesNotFitAndChangeNothing) {
  const TrainingRun run;
  const std::string before = run.digest();
  const TrainingRun other_seed(3, 6);
  for (const StateItem& item : run.strategy.state_items()) {
    testing::expect_error<UsageError>([&] { item.write({}); }, "LS-STATE-MISFIT");
    if (item.kind != Kind::kNumber && item.kind != Kind::kStepCount && item.kind != Kind::kLearningRate) continue;
    testing::expect_error<UsageError>([&] { item.write({torch::zeros({2})}); }, "LS-STATE-MISFIT", {item.name});
    if (item.kind == Kind::kStepCount) {
      testing::expect_error<UsageError>([&] { item.write({torch::tensor(int64_t{-1})}); }, "LS-STATE-MISFIT");
    }
  }
  testing::expect_error<UsageError>([&] { copy_state(other_seed, run); }, "LS-STATE-MISFIT", {"seed 6", "seed 5"});
  EXPECT_EQ(run.digest(), before);
}

}  // namespace
}  // namespace lockstep
