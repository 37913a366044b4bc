// Gradient accumulation: micro-batches of any sizes are one batch, summed over replicas once.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/testing/local_replicas.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

namespace F = torch::nn::functional;
namespace nn = torch::nn;
using torch::Tensor;

/// Cuts a part into micro-batches of 1, 2, 3, ... samples; the last takes the rest. Where the part is empty, so are
/// they.
std::vector<Batch> uneven_micro_batches(const Batch& part, int count) {
  std::vector<Batch> result;
  int64_t begin = 0;
  for (int k = 0; k < count; ++k) {
    const int64_t rest = part.size() - begin;
    const int64_t length = k + 1 == count ? rest : std::min<int64_t>(k + 1, rest);
    result.push_back({part.input.narrow(0, begin, length), part.target.narrow(0, begin, length), {}, part.global_size});
    begin += length;
  }
  return result;
}

nn::Sequential make_net() { return nn::Sequential(nn::Linear(24, 9), nn::Tanh(), nn::Linear(9, 7)); }

class AccumulationOn : public ::testing::TestWithParam<int64_t> {
 protected:
  /// Trains with `step(ctx, model, part, micro_batches)`, which goes backward; on one device with one micro-batch.
  template <class Step>
  static void expect_that_of_the_whole_batch(int64_t global_batch, const Step& step) {
    testing::expect_same_as_one_device(
        [&](Strategy& strategy, const auto& observe) {
          const auto model = strategy.make_module(make_net);
          const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1).momentum(0.9));
          const auto data = strategy.distribute(testing::make_data("mlp", 60), {.global_batch = global_batch});
          const int micro_batches = strategy.name() == "OneDeviceStrategy" ? 1 : 3;
          observe();
          int done = 0;
          for (const auto& batch : data.epoch(0)) {
            strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
              step(ctx, model(ctx), uneven_micro_batches(part, micro_batches));
              optimizer.step(ctx);
            });
            observe();
            if (++done == 4) break;
          }
        },
        {.replicas = GetParam()});
  }
};

TEST_P(AccumulationOn, IsOneDeviceOnTheWholeBatchByCountsOfSamples) {
  const auto step = [](ReplicaContext& ctx, nn::Sequential& model, const std::vector<Batch>& micro_batches) {
    for (const Batch& micro : micro_batches) {
      const Tensor mean = F::cross_entropy(model->forward(micro.input), micro.target);
      ctx.scale_loss(mean, micro.size(), micro.global_size).backward();
    }
  };
  if (GetParam() == 1) GTEST_SKIP() << "of one replica the kit asks for equal bits, which micro-batches have not";
  expect_that_of_the_whole_batch(22, step);
  expect_that_of_the_whole_batch(3, step);  // of 4 replicas one has no sample
}

TEST_P(AccumulationOn, IsOneDeviceOnTheWholeBatchByCountsOfTokens) {
  // A mean over what is not ignored: parts and micro-batches count by their tokens, the whole by those of all.
  const auto counted = [](const Batch& micro) { return micro.target.remainder(3).ne(0); };
  const auto step = [&](ReplicaContext& ctx, nn::Sequential& model, const std::vector<Batch>& micro_batches) {
    Tensor tokens = torch::zeros({}, torch::kLong);
    for (const Batch& micro : micro_batches) tokens += counted(micro).sum();
    const Tensor all = ctx.all_reduce(Reduction::kSum, tokens);
    for (const Batch& micro : micro_batches) {
      const Tensor target = torch::where(counted(micro), micro.target, torch::full_like(micro.target, -100));
      const Tensor mean = F::cross_entropy(model->forward(micro.input), target);
      ctx.scale_loss(mean, counted(micro).sum(), all).backward();
    }
  };
  if (GetParam() == 1) GTEST_SKIP() << "of one replica the kit asks for equal bits, which micro-batches have not";
  expect_that_of_the_whole_batch(22, step);
}

TEST_P(AccumulationOn, IsStockLibTorchOnTheWholeBatch) {
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = GetParam(), .seed = 7});
  const auto model = strategy.make_module(make_net);
  nn::Sequential stock = model.export_module();
  const auto data = testing::make_data("mlp", 22);
  const auto batches = strategy.distribute(data, {.global_batch = 22});
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(1));
  std::vector<Tensor> inputs;
  std::vector<Tensor> targets;
  for (const auto& batch : batches.epoch(0)) {
    for (const Batch& part : batch) {
      inputs.push_back(part.input);
      targets.push_back(part.target);
    }
    strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
      for (const Batch& micro : uneven_micro_batches(part, 3)) {
        const Tensor mean = F::cross_entropy(model(ctx)->forward(micro.input), micro.target);
        ctx.scale_loss(mean, micro.size(), micro.global_size).backward();
      }
      optimizer.step(ctx);
    });
  }
  F::cross_entropy(stock->forward(torch::cat(inputs)), torch::cat(targets)).backward();
  const auto state = model.state();
  for (const auto& item : stock->named_parameters()) {
    const Tensor expected = item.value().detach() - item.value().grad();
    EXPECT_TRUE(torch::allclose(state.at(item.key()), expected, 1e-5, 1e-7)) << item.key();
  }
}

INSTANTIATE_TEST_SUITE_P(Replicas, AccumulationOn, ::testing::Values(1, 3, 4));

class Accumulation : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
  const Variable weight_ = strategy_->make_variable(torch::zeros({3}), {.name = "weight"});
  const Optimizer optimizer_ = strategy_->make_optimizer(std::vector<Variable>{weight_}, torch::optim::SGDOptions(1));
  void backward(const ReplicaContext& ctx, double gradient) const { (weight_.value(ctx) * gradient).sum().backward(); }
};

TEST_P(Accumulation, SumsOverReplicasOnceAndNotForEachMicroBatch) {
  if (strategy_->num_replicas() == 1) GTEST_SKIP() << "one replica has nothing to sum over";
  // 1e8 + 1 is 1e8 in float32: what replicas add up first among themselves is lost, here on purpose. Sums over replicas
  // of each micro-batch would be 0 and then 2.
  strategy_->run([&](ReplicaContext& ctx) {
    const int64_t r = ctx.replica_id();
    backward(ctx, r == 0 ? 1e8 : r == 1 ? -1e8 : 0);
    backward(ctx, r <= 1 ? 1 : 0);
    optimizer_.step(ctx);
  });
  EXPECT_TRUE(torch::equal(weight_.read(), torch::zeros({3}))) << weight_.read();
}

TEST_P(Accumulation, TakesAnyNumberOfMicroBatchesOnEachReplica) {
  strategy_->run([&](ReplicaContext& ctx) {  // a backward meets nobody
    for (int64_t k = 0; k <= ctx.replica_id(); ++k) backward(ctx, 1);
    optimizer_.step(ctx);
  });
  const auto n = static_cast<double>(strategy_->num_replicas());
  EXPECT_TRUE(torch::equal(weight_.read(), torch::full({3}, -n * (n + 1) / 2)));
}

INSTANTIATE_TEST_SUITE_P(Strategies, Accumulation, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lockstep
