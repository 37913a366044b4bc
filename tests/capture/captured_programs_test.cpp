// A captured step has the bits of its function, whatever the program is.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/capture/setting.h"
#include "tests/support/autocast.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep::testing {
namespace {

using torch::Tensor;

Outcome trained(Plan plan, bool captured, int64_t& replayed) {
  plan.captured = captured;
  MirroredStrategy strategy({.devices = lanes(plan.lanes),
                             .replicas = plan.replicas,
                             .copies = plan.copies,
                             .seed = plan.seed,
                             .threads_per_replica = plan.threads_per_replica});
  return train(strategy, plan, replayed);
}

class CapturedPrograms : public ::testing::TestWithParam<Plan> {};

TEST_P(CapturedPrograms, HaveTheBitsOfTheSameProgramsAsTheyAre) {
  int64_t replayed = 0;
  const Outcome as_it_is = trained(GetParam(), false, replayed);
  const Outcome captured = trained(GetParam(), true, replayed);
  EXPECT_EQ(captured, as_it_is);
  EXPECT_GT(replayed, GetParam().steps * GetParam().replicas / 2);
}

std::vector<Plan> plans() {
  std::vector<Plan> all;
  for (const char* const program : {"mlp", "cnn", "twice", "embedding", "double"}) {
    for (const int64_t replicas : {1, 2, 4}) {
      for (const int lanes : {1, 2}) {
        if (lanes > replicas) continue;
        all.push_back({.program = program, .replicas = replicas, .lanes = lanes, .steps = 40});
      }
    }
  }
  for (const char* const optimizer :
       {"sgd", "momentum", "nesterov", "adam", "amsgrad", "rmsprop", "centered", "adagrad"})
    all.push_back({.optimizer = optimizer, .steps = 40});
  all.push_back({.lanes = 2, .steps = 40, .clip = 0.5});
  all.push_back({.lanes = 2, .steps = 60, .accumulate = 3});
  all.push_back({.program = "cnn", .lanes = 2, .copies = Copies::kPerReplica, .steps = 40, .evaluate_between = true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, CapturedPrograms, ::testing::ValuesIn(plans()));

TEST(CapturedPrograms, HaveTheSameBitsOnAnyNumberOfWorkers) {
  for (const std::string program : {"mlp", "cnn"}) {
    Plan plan{.program = program, .steps = 40, .clip = program == "mlp" ? 0.5 : 0.0};
    const auto run = [&](Strategy& strategy) {
      int64_t replayed = 0;
      const Outcome outcome = train(strategy, plan, replayed);
      EXPECT_EQ(replayed > 0, plan.captured);
      return outcome;
    };
    for (const WorkersCase& workers :
         {WorkersCase{.workers = 2, .replicas = 4}, WorkersCase{.workers = 3, .replicas = 4},
          WorkersCase{.workers = 2, .replicas = 4, .lanes = 2},
          WorkersCase{.workers = 2, .replicas = 4, .hosts = {0, 1}}}) {
      plan.captured = false;
      const std::vector<Outcome> as_it_is = run_workers(workers, run);
      plan.captured = true;
      EXPECT_EQ(run_workers(workers, run), as_it_is) << program << ", " << workers;
    }
  }
}

/// Trains a program's own step as it is and captured; gives how many calls were replayed.
template <class Program>
int64_t expect_same_program(int runs = 24, const MirroredOptions& options = {
                                               .devices = {"cpu:0", "cpu:1"}, .replicas = 4, .seed = 3}) {
  std::vector<std::vector<Tensor>> all;
  int64_t replayed = 0;
  for (const bool is_captured : {false, true}) {
    MirroredStrategy strategy(options);
    Program program(strategy);
    const auto step = [&](ReplicaContext& ctx, const Batch& batch) { return program.step(ctx, batch); };
    const auto captured = strategy.capture(step);
    std::vector<Tensor> left;
    for (int k = 0; k < runs; ++k) {
      const PerReplica<Batch> batch = program.batch(k);
      const auto results = is_captured ? strategy.run(batch, captured) : strategy.run(batch, step);
      left.insert(left.end(), results.begin(), results.end());
    }
    for (const Variable& one : strategy.variables()) left.push_back(one.read());
    all.push_back(std::move(left));
    replayed = captured.num_replayed();
  }
  EXPECT_TRUE(are_equal(all[0], all[1]));
  return replayed;
}

/// A matrix whose gradient stays factors until the update.
struct LargeLayer {
  explicit LargeLayer(Strategy& its_strategy) : strategy(its_strategy) {}
  PerReplica<Batch> batch(int64_t k) const {
    const Tensor x = torch::arange(16 * 512).to(torch::kFloat).add(k).sin().view({16, 512});
    return strategy.split(x, x.slice(1, 0, 10));
  }
  Tensor step(ReplicaContext& ctx, const Batch& batch) {
    const Tensor hidden = torch::relu(torch::linear(batch.input, first.value(ctx), bias.value(ctx)));
    const Tensor loss = ctx.scale_loss(torch::mse_loss(torch::linear(hidden, second.value(ctx)), batch.target));
    loss.backward();
    optimizer.step(ctx, {.clip_global_norm = 1.0});
    return loss.detach();
  }
  static Tensor weight(int64_t rows, int64_t columns) {
    return torch::arange(rows * columns).to(torch::kFloat).sin().mul(0.05).view({rows, columns});
  }
  Strategy& strategy;
  Variable first = strategy.make_variable(weight(600, 512), {.name = "first"});
  Variable bias = strategy.make_variable(torch::zeros({600}), {.name = "bias"});
  Variable second = strategy.make_variable(weight(10, 600), {.name = "second"});
  Optimizer optimizer = strategy.make_optimizer({first, bias, second}, torch::optim::AdamWOptions(0.01));
};

TEST(CapturedPrograms, KeepGradientsAsFactorsWhereTheyAreKeptWithoutCapture) {
  EXPECT_GT((expect_same_program<LargeLayer>()), 40);
  // The last step of the second is a replayed one: what its variables say is what a replay made of their gradients.
  std::vector<std::string> texts;
  for (const bool is_captured : {false, true}) {
    MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 2, .seed = 3});
    LargeLayer program(strategy);
    const auto step = [&](ReplicaContext& ctx, const Batch& batch) { return program.step(ctx, batch); };
    const auto captured = strategy.capture(step);
    for (int k = 0; k < 7; ++k)
      is_captured ? strategy.run(program.batch(k), captured) : strategy.run(program.batch(k), step);
    EXPECT_EQ(captured.num_replayed() > 0, is_captured);
    texts.push_back(strategy.describe_variables());
  }
  EXPECT_EQ(texts[0], texts[1]);
}

/// Two networks with an optimizer each, in one step; one of them is set to zero.
struct Gan {
  explicit Gan(Strategy& its_strategy) : strategy(its_strategy) {}
  PerReplica<Batch> batch(int64_t k) const {
    return strategy.split(torch::arange(32).to(torch::kFloat).add(k).cos().view({8, 4}));
  }
  Tensor step(ReplicaContext& ctx, const Batch& batch) {
    const Tensor noise = torch::randn_like(batch.input);
    const Tensor made = torch::tanh(torch::linear(noise, generator.value(ctx)));
    const auto judged = [&](const Tensor& x) { return torch::linear(x, judge.value(ctx)).mean(); };
    const Tensor wrong = ctx.scale_loss(judged(made.detach()).sigmoid() - judged(batch.input).sigmoid());
    wrong.backward();
    of_judge.step(ctx);
    const Tensor right = ctx.scale_loss(-judged(made).sigmoid());
    right.backward();
    of_generator.step(ctx, {.clip_value = 0.5});
    of_judge.zero_grad(ctx);
    return wrong.detach() + right.detach();
  }
  Strategy& strategy;
  Variable generator = strategy.make_variable(torch::eye(4), {.name = "generator"});
  Variable judge = strategy.make_variable(torch::ones({1, 4}), {.name = "judge"});
  Optimizer of_generator = strategy.make_optimizer({generator}, torch::optim::AdamWOptions(0.01));
  Optimizer of_judge = strategy.make_optimizer({judge}, torch::optim::SGDOptions(0.1).momentum(0.9));
};

TEST(CapturedPrograms, HaveSeveralOptimizersInAStep) { EXPECT_GT((expect_same_program<Gan>()), 40); }

struct RecurrentNet : torch::nn::Module {
  RecurrentNet()
      : cells(register_module("cells", torch::nn::LSTM(torch::nn::LSTMOptions(4, 6).num_layers(2).batch_first(true)))),
        last(register_module("last", torch::nn::Linear(6, 1))) {}
  Tensor forward(const Tensor& x) { return last->forward(std::get<0>(cells->forward(x)).select(1, -1)); }
  torch::nn::LSTM cells;
  torch::nn::Linear last;
};

/// A recurrent network, metrics, and a moving average.
struct Recurrent {
  explicit Recurrent(Strategy& its_strategy) : strategy(its_strategy) {}
  PerReplica<Batch> batch(int64_t k) const {
    const Tensor x = torch::arange(8 * 5 * 4).to(torch::kFloat).add(k).sin().view({8, 5, 4});
    return strategy.split(x, x.sum(1).sum(1, true));
  }
  Tensor step(ReplicaContext& ctx, const Batch& batch) {
    const Tensor mean = torch::mse_loss(model(ctx)->forward(batch.input), batch.target);
    ctx.scale_loss(mean).backward();
    optimizer.step(ctx);
    seen.update(ctx, mean.detach());
    return mean.detach();
  }
  Strategy& strategy;
  Replicated<std::shared_ptr<RecurrentNet>> model =
      strategy.make_module([] { return std::make_shared<RecurrentNet>(); });
  Optimizer optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.01));
  MovingAverage average = strategy.make_moving_average(model, {.decay = 0.9});
  metrics::Mean seen{strategy, "seen"};
};

TEST(CapturedPrograms, HaveRecurrentLayersMetricsAndAverages) { EXPECT_GT((expect_same_program<Recurrent>()), 40); }

struct NormNet : torch::nn::Module {
  NormNet()
      : first(register_module("first", torch::nn::Linear(4, 6))),
        norm(register_module("norm", SyncBatchNorm(torch::nn::BatchNorm1d(6)))),
        last(register_module("last", torch::nn::Linear(6, 1))) {}
  Tensor forward(const Tensor& x) { return last->forward(torch::relu(norm->forward(first->forward(x)))); }
  torch::nn::Linear first;
  SyncBatchNorm norm{nullptr};
  torch::nn::Linear last;
};

/// The whole batch is normalized: replicas meet in forward and backward.
struct SyncNorm {
  explicit SyncNorm(Strategy& its_strategy) : strategy(its_strategy) {}
  PerReplica<Batch> batch(int64_t k) const {
    const Tensor x = torch::arange(16 * 4).to(torch::kFloat).add(k).sin().view({16, 4});
    return strategy.split(x, x.sum(1, true));
  }
  Tensor step(ReplicaContext& ctx, const Batch& batch) {
    const Tensor loss = ctx.scale_loss(torch::mse_loss(model(ctx)->forward(batch.input), batch.target));
    loss.backward();
    optimizer.step(ctx);
    return loss.detach();
  }
  Strategy& strategy;
  Replicated<std::shared_ptr<NormNet>> model = strategy.make_module([] { return std::make_shared<NormNet>(); });
  Optimizer optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
};

/// It reads the number of samples, of which there must be more than one.
TEST(CapturedPrograms, ThatNormalizeByTheWholeBatchRunAsTheyAre) { EXPECT_EQ(expect_same_program<SyncNorm>(), 0); }

TEST(CapturedPrograms, RunUnderAutocast) {
  set_autocast(true);
  const int64_t replayed = expect_same_program<Recurrent>();
  set_autocast(false);
  EXPECT_GT(replayed, 40);
}

}  // namespace
}  // namespace lockstep::testing
