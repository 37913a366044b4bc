// Losses without weight, losses that add up, and what only looks like either: a step that is wrong is named once, and
// one that is right is not named.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;
namespace nn = torch::nn;

/// What the steps of a test have to do with: two networks, and what a replica is given.
struct Nets {
  Replicated<nn::Linear> model;
  Optimizer optimizer;
  Replicated<nn::Linear> other;
  Optimizer for_other;

  Tensor loss(ReplicaContext& ctx, const Tensor& input, const Tensor& target) const {
    return torch::mse_loss(model(ctx)->forward(input), target);
  }
  Tensor loss(ReplicaContext& ctx, const Batch& part) const { return loss(ctx, part.input, part.target); }
};

Nets make_nets(Strategy& strategy) {
  const auto model = strategy.make_module([] { return nn::Linear(3, 1); });
  const auto other = strategy.make_module([] { return nn::Linear(3, 3); }, {.name = "other"});
  return {model, strategy.make_optimizer(model, torch::optim::SGDOptions(0.01)), other,
          strategy.make_optimizer(other, torch::optim::SGDOptions(0.01))};
}

/// A part with `rows` rows of a global batch of 16.
PerReplica<Batch> parts_of_sixteen(Strategy& strategy) {
  return strategy.split(torch::arange(48, torch::kFloat).view({16, 3}) / 48, torch::linspace(0, 1, 16).view({16, 1}));
}

int64_t steps_with(const Strategy& strategy, const std::string& code) {
  int64_t count = 0;
  for (const Finding& finding : strategy.findings()) count += finding.code == code ? finding.count : 0;
  return count;
}

std::string texts(const Strategy& strategy) {
  std::string all;
  for (const Finding& finding : strategy.findings()) all += finding.code + ": " + finding.text + "\n";
  return all;
}

struct Replicas {
  int64_t replicas;
  int lanes;
};

class Losses : public ::testing::TestWithParam<Replicas> {
 protected:
  using Step = std::function<void(ReplicaContext&, const Batch&)>;

  void run(int times, const Step& step) {
    for (int i = 0; i < times; ++i) strategy_.run(parts_of_sixteen(strategy_), step);
  }
  void expect_said(int64_t steps) {
    EXPECT_EQ(steps_with(strategy_, "LS-LOSS-NOT-SCALED"), GetParam().replicas == 1 ? 0 : steps) << texts(strategy_);
    EXPECT_EQ(static_cast<int64_t>(strategy_.findings().size()), GetParam().replicas == 1 ? 0 : 1) << texts(strategy_);
  }
  void expect_nothing_said() { EXPECT_EQ(texts(strategy_), ""); }

  MirroredStrategy strategy_{{.devices = lanes(GetParam().lanes), .replicas = GetParam().replicas, .seed = 1}};
  const Nets nets_ = make_nets(strategy_);
};

TEST_P(Losses, WithoutWeightAreSaidWhateverTheRunIsGiven) {
  const Tensor x = torch::ones({16, 3});
  const Tensor y = torch::ones({16, 1});
  strategy_.run(x, y, [&](ReplicaContext& ctx, const Tensor& input, const Tensor& target) {
    nets_.loss(ctx, input, target).backward();
    nets_.optimizer.step(ctx);
  });
  strategy_.run([&](ReplicaContext& ctx) {
    nets_.loss(ctx, x, y).backward();
    nets_.optimizer.step(ctx);
    ctx.all_reduce(Reduction::kSum, torch::ones({}));  // too late to be a weight
  });
  run(1, [&](ReplicaContext& ctx, const Batch& part) {
    nets_.loss(ctx, part).backward();
    ctx.scale_loss(nets_.loss(ctx, part).detach());  // for the report alone
    nets_.optimizer.step(ctx);
  });
  expect_said(3);
}

TEST_P(Losses, OfARunThatFailedDoNotCountForTheNext) {
  EXPECT_THROW(run(1,
                   [&](ReplicaContext& ctx, const Batch& part) {
                     ctx.scale_loss(nets_.loss(ctx, part)).backward();
                     throw std::runtime_error("after backward");
                   }),
               ReplicaError);
  run(2, [&](ReplicaContext& ctx, const Batch& part) {
    nets_.loss(ctx, part).backward();
    nets_.optimizer.step(ctx);
  });
  expect_said(2);
}

TEST_P(Losses, OfOneOfTwoNetworksWithoutWeight) {
  run(2, [&](ReplicaContext& ctx, const Batch& part) {
    ctx.scale_loss(nets_.loss(ctx, part)).backward();
    nets_.optimizer.step(ctx);
    nets_.other(ctx)->forward(part.input).square().mean().backward();
    nets_.for_other.step(ctx);
  });
  expect_said(2);
}

TEST_P(Losses, ThatHaveTheirWeightAreNone) {
  const int64_t replicas = GetParam().replicas;
  run(1, [&](ReplicaContext& ctx, const Batch& part) {
    (nets_.loss(ctx, part) / static_cast<double>(ctx.num_replicas())).backward();
    nets_.optimizer.step(ctx);
  });
  run(1, [&](ReplicaContext& ctx, const Batch& part) {
    (nets_.loss(ctx, part) / static_cast<double>(strategy_.num_replicas())).backward();
    nets_.optimizer.step(ctx);
  });
  run(1, [&](ReplicaContext& ctx, const Batch& part) {
    const Tensor sum = (nets_.model(ctx)->forward(part.input) - part.target).square().sum();
    (sum / static_cast<double>(ctx.global_batch_size())).backward();
    nets_.optimizer.step(ctx);
  });
  run(1, [&](ReplicaContext& ctx, const Batch& part) {
    const Tensor weights = part.weights();
    const Tensor whole = ctx.all_reduce(Reduction::kSum, weights.sum());
    ((nets_.model(ctx)->forward(part.input) - part.target).square().sum() / whole).backward();
    nets_.optimizer.step(ctx);
  });
  run(1, [&](ReplicaContext& ctx, const Batch& part) {
    ctx.scale_loss(nets_.loss(ctx, part) / static_cast<double>(replicas), 1, 1).backward();
    nets_.optimizer.step(ctx);
  });
  run(1, [&](ReplicaContext& ctx, const Batch& part) {
    nets_.loss(ctx, part).backward();
    nets_.optimizer.step(ctx, {.loss_scaled_by_hand = true});
  });
  expect_nothing_said();
}

TEST_P(Losses, WhoseGradientsAreDroppedBeforeBackwardAreNone) {
  run(2, [&](ReplicaContext& ctx, const Batch& part) {
    const Tensor loss = ctx.scale_loss(nets_.loss(ctx, part));
    nets_.optimizer.zero_grad(ctx);
    loss.backward();
    nets_.optimizer.step(ctx);
  });
  expect_nothing_said();
}

TEST_P(Losses, OfReplicasWithoutSamplesAreNone) {
  const auto run_with = [&](const std::function<void(ReplicaContext&, const Batch&)>& step) {
    strategy_.run(strategy_.split(torch::ones({1, 3}), torch::ones({1, 1})), step);
  };
  run_with([&](ReplicaContext& ctx, const Batch& part) {
    const Tensor loss = ctx.scale_loss(nets_.loss(ctx, part));
    nets_.optimizer.zero_grad(ctx);
    loss.backward();
    nets_.optimizer.step(ctx);
  });
  run_with([&](ReplicaContext& ctx, const Batch& part) {
    if (part.size() > 0) ctx.scale_loss(nets_.loss(ctx, part)).backward();
    nets_.optimizer.step(ctx);
  });
  expect_nothing_said();
}

TEST_P(Losses, GradientsOfOneReplicaAloneAreNone) {
  if (GetParam().replicas == 1) return;
  run(1, [&](ReplicaContext& ctx, const Batch& part) {
    if (ctx.replica_id() == 0) nets_.loss(ctx, part).backward();
    nets_.optimizer.step(ctx);
  });
  expect_nothing_said();
}

TEST_P(Losses, OfSeveralRunsThatAddUp) {
  int k = 0;
  for (int i = 0; i < 4; ++i, ++k) {
    run(1, [&](ReplicaContext& ctx, const Batch& part) {
      ctx.scale_loss(nets_.loss(ctx, part)).backward();
      if (k % 2 == 1) nets_.optimizer.step(ctx);
    });
  }
  expect_said(2);
}

TEST_P(Losses, OfMicroBatchesThatAddUp) {
  if (16 / GetParam().replicas < 2) return;
  run(2, [&](ReplicaContext& ctx, const Batch& part) {
    const int64_t half = part.size() / 2;
    for (int64_t first = 0; first < 2 * half; first += half) {
      ctx.scale_loss(nets_.loss(ctx, part.input.narrow(0, first, half), part.target.narrow(0, first, half))).backward();
    }
    nets_.optimizer.step(ctx);
  });
  expect_said(2);
}

TEST_P(Losses, WithCountsOfOneRunThatAddUpOverTwo) {
  int k = 0;
  for (int i = 0; i < 2; ++i, ++k) {
    run(1, [&](ReplicaContext& ctx, const Batch& part) {
      ctx.scale_loss(nets_.loss(ctx, part), part.size(), 16).backward();
      if (k == 1) nets_.optimizer.step(ctx);
    });
  }
  expect_said(1);
}

TEST_P(Losses, OfMicroBatchesWithTheirPartAreNone) {
  int k = 0;
  for (int i = 0; i < 4; ++i, ++k) {
    run(1, [&](ReplicaContext& ctx, const Batch& part) {
      ctx.scale_loss(nets_.loss(ctx, part), part.size(), 32).backward();
      if (k % 2 == 1) nets_.optimizer.step(ctx);
    });
    run(1, [&](ReplicaContext& ctx, const Batch& part) {  // LibTorch's own way
      ctx.scale_loss(torch::mse_loss(nets_.other(ctx)->forward(part.input), part.input) / 2).backward();
      if (k % 2 == 1) nets_.for_other.step(ctx);
    });
    run(1, [&](ReplicaContext& ctx, const Batch& part) {
      (ctx.scale_loss(nets_.loss(ctx, part)) * 0.5).backward();
      if (k % 2 == 1) nets_.optimizer.step(ctx);
    });
  }
  expect_nothing_said();
}

TEST_P(Losses, ThatAreTermsOfOneAreNone) {
  const auto back = [](ReplicaContext& ctx, const Tensor& loss) { ctx.scale_loss(loss).backward(); };
  run(2, [&](ReplicaContext& ctx, const Batch& part) {
    (ctx.scale_loss(nets_.loss(ctx, part)) + ctx.scale_loss(nets_.loss(ctx, part.input + 1, part.target))).backward();
    nets_.optimizer.step(ctx);
  });
  run(2, [&](ReplicaContext& ctx, const Batch& part) {  // terms of two kinds
    back(ctx, nets_.loss(ctx, part));
    back(ctx, nets_.model(ctx)->weight.square().sum());
    nets_.optimizer.step(ctx);
  });
  run(2, [&](ReplicaContext& ctx, const Batch& part) {  // two views of all samples, as a discriminator's real and false
    back(ctx, nets_.loss(ctx, part));
    back(ctx, nets_.loss(ctx, part.input + 1, part.target));
    nets_.optimizer.step(ctx);
  });
  for (int k = 0; k < 2; ++k) {  // two tasks in turn
    run(1, [&](ReplicaContext& ctx, const Batch& part) {
      k == 0 ? back(ctx, nets_.loss(ctx, part)) : back(ctx, nets_.model(ctx)->forward(part.input).abs().mean());
      if (k == 1) nets_.optimizer.step(ctx);
    });
  }
  expect_nothing_said();
}

TEST_P(Losses, OfTwoNetworksOneBehindTheOtherAreNone) {
  run(3, [&](ReplicaContext& ctx, const Batch& part) {
    const Tensor made = nets_.other(ctx)->forward(part.input);
    nets_.optimizer.zero_grad(ctx);
    ctx.scale_loss(nets_.loss(ctx, part)).backward();
    ctx.scale_loss(nets_.loss(ctx, made.detach(), part.target)).backward();
    nets_.optimizer.step(ctx);
    ctx.scale_loss(nets_.loss(ctx, made, part.target)).backward();
    nets_.for_other.step(ctx);
  });
  expect_nothing_said();
}

TEST_P(Losses, WhoseGradientsWereSetToZeroBetweenAreNone) {
  run(4, [&](ReplicaContext& ctx, const Batch& part) {
    nets_.model(ctx)->zero_grad();
    ctx.scale_loss(nets_.loss(ctx, part)).backward();
    nets_.optimizer.step(ctx, {.gradients_changed_on_purpose = true});
    ctx.scale_loss(nets_.loss(ctx, part)).backward();  // is not used
  });
  run(1, [&](ReplicaContext& ctx, const Batch&) {  // by hand, and no loss
    nets_.model(ctx)->weight.mutable_grad() = torch::ones({1, 3});
    nets_.optimizer.step(ctx, {.gradients_changed_on_purpose = true});
  });
  expect_nothing_said();
}

TEST_P(Losses, ThatAreNotFiniteAreSaid) {
  const int64_t last = GetParam().replicas - 1;
  run(3, [&](ReplicaContext& ctx, const Batch& part) {
    ctx.scale_loss(nets_.loss(ctx, part) / (ctx.replica_id() == last ? 0.0 : 1.0));
  });
  ASSERT_EQ(strategy_.findings().size(), 1U) << texts(strategy_);
  const Finding found = strategy_.findings().front();
  EXPECT_EQ(found.code, "LS-NOT-FINITE");
  EXPECT_EQ(found.count, 3);
  EXPECT_NE(found.text.find("replica " + std::to_string(last)), std::string::npos) << found.text;
  strategy_.run(strategy_.split(torch::ones({0, 3}), torch::ones({0, 1})), [&](ReplicaContext& ctx, const Batch& part) {
    ctx.scale_loss(nets_.loss(ctx, part));  // the mean of no samples is NaN
  });
  EXPECT_EQ(strategy_.findings().front().count, 3);
}

INSTANTIATE_TEST_SUITE_P(
    Replicas, Losses, ::testing::Values(Replicas{1, 1}, Replicas{2, 1}, Replicas{4, 1}, Replicas{4, 2}, Replicas{5, 2}),
    [](const auto& one) { return "V" + std::to_string(one.param.replicas) + "On" + std::to_string(one.param.lanes); });

/// The findings of each worker, of a run with such a step.
testing::PerWorker<int64_t> said_by_workers(int64_t samples, bool is_scaled) {
  return testing::run_workers({.workers = 2, .replicas = 4}, [&](Strategy& strategy) {
    const Nets nets = make_nets(strategy);
    const auto parts = strategy.split(torch::ones({samples, 3}), torch::ones({samples, 1}));
    strategy.run(parts, [&](ReplicaContext& ctx, const Batch& part) {
      const Tensor loss = nets.loss(ctx, part);
      const Tensor scaled = is_scaled ? ctx.scale_loss(loss) : loss;
      nets.optimizer.zero_grad(ctx);
      if (part.size() > 0) scaled.backward();
      nets.optimizer.step(ctx);
    });
    return static_cast<int64_t>(strategy.findings().size());
  });
}

TEST(LossesOfWorkers, WithoutWeightAreSaidByEachThatHasSamples) {
  EXPECT_EQ(said_by_workers(16, false), (testing::PerWorker<int64_t>{1, 1}));
  EXPECT_EQ(said_by_workers(2, false), (testing::PerWorker<int64_t>{1, 0}));
}

TEST(LossesOfWorkers, WithWeightAreNoneAlsoWhereAWorkerHasNoSamples) {
  EXPECT_EQ(said_by_workers(16, true), (testing::PerWorker<int64_t>{0, 0}));
  EXPECT_EQ(said_by_workers(2, true), (testing::PerWorker<int64_t>{0, 0}));
}

}  // namespace
}  // namespace lockstep
