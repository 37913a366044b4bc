// Metrics: right for uneven and empty parts, and the same bits on any lanes.
#include "lockstep/strategy/metrics.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <optional>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

namespace F = torch::nn::functional;
using testing::lanes;
using torch::Tensor;

constexpr int64_t kSamples = 61;
constexpr int64_t kClasses = 7;

/// Logits as inputs, classes as targets: 61 samples in batches of 7, the last of 5, so that of 8 replicas some have
/// none.
struct Samples {
  Tensor logits;
  Tensor targets;
  explicit Samples(int64_t count = kSamples) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
    logits = torch::randn({count, kClasses}, generator);
    targets = torch::randint(0, kClasses, {count}, generator, torch::kLong);
  }
  data::DistributedDataset on(Strategy& strategy) const {
    return strategy.distribute(data::from_tensors(logits, targets), {.global_batch = 7, .shuffle = true});
  }
  Tensor losses() const { return per_sample(logits, targets); }
  static Tensor per_sample(const Tensor& logits, const Tensor& targets) {
    return F::cross_entropy(logits, targets, F::CrossEntropyFuncOptions().reduction(torch::kNone));
  }
};

/// One of each, fed with all samples of an epoch.
struct All {
  metrics::Mean loss;
  metrics::Accuracy accuracy;
  metrics::TopKAccuracy top3;
  metrics::MeanSquaredError error;
  metrics::Perplexity perplexity;

  explicit All(Strategy& strategy)
      : loss(strategy, "loss"), accuracy(strategy), top3(strategy, "top3", 3), error(strategy), perplexity(strategy) {}

  void update(ReplicaContext& ctx, const Batch& part) const {
    loss.update(ctx, Samples::per_sample(part.input, part.target));
    accuracy.update(ctx, part.input, part.target);
    top3.update(ctx, part.input, part.target);
    error.update(ctx, part.input.select(1, 0), part.target);
    perplexity.update(ctx, part.input, part.target);
  }
  std::vector<double> results() const {
    return {loss.result(), accuracy.result(), top3.result(), error.result(), perplexity.result()};
  }
};

class MetricsOf : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  int64_t replicas() const { return GetParam().first; }
  void run(const std::function<void(ReplicaContext&)>& step) {
    strategy_.run([&](ReplicaContext& ctx) { step(ctx); });
  }
  MirroredStrategy strategy_{{.devices = lanes(GetParam().second), .replicas = GetParam().first}};
};

TEST_P(MetricsOf, AreThoseOfOneDeviceOnAllSamplesAlsoOfUnevenAndEmptyParts) {
  const Samples samples;
  const All all(strategy_);
  for (const auto& batch : samples.on(strategy_).epoch(0)) {
    strategy_.run(batch, [&](ReplicaContext& ctx, const Batch& part) { all.update(ctx, part); });
  }
  const Tensor losses = samples.losses().to(torch::kDouble);
  const Tensor right = samples.logits.argmax(1).eq(samples.targets);
  const Tensor top = std::get<1>(samples.logits.topk(3, 1)).eq(samples.targets.unsqueeze(1)).any(1);
  const Tensor square = (samples.logits.select(1, 0).to(torch::kDouble) - samples.targets).square();
  EXPECT_NEAR(all.loss.result(), losses.mean().item<double>(), 1e-12);
  EXPECT_EQ(all.loss.count(), kSamples);
  EXPECT_EQ(all.accuracy.result(), right.sum().item<double>() / kSamples);
  EXPECT_EQ(all.accuracy.count(), kSamples);
  EXPECT_EQ(all.top3.result(), top.sum().item<double>() / kSamples);
  EXPECT_NEAR(all.error.result(), square.mean().item<double>(), 1e-12);
  EXPECT_NEAR(all.perplexity.result(), std::exp(losses.mean().item<double>()), 1e-6);
}

TEST_P(MetricsOf, GiveTheSameInEvaluateAsInRun) {
  const Samples samples;
  const All all(strategy_);
  for (const auto& batch : samples.on(strategy_).epoch(0)) {
    strategy_.run(batch, [&](ReplicaContext& ctx, const Batch& part) { all.update(ctx, part); });
  }
  const auto in_run = all.results();
  all.loss.reset(), all.accuracy.reset(), all.top3.reset(), all.error.reset(), all.perplexity.reset();
  for (const auto& batch : samples.on(strategy_).epoch(0)) {
    strategy_.evaluate(batch, [&](ReplicaContext& ctx, const Batch& part) { all.update(ctx, part); });
  }
  EXPECT_EQ(all.results(), in_run);
}

TEST_P(MetricsOf, CountOnlyReplicasThatUpdate) {
  const metrics::Mean mean(strategy_, "mean");
  const metrics::Accuracy accuracy(strategy_);
  run([&](ReplicaContext& ctx) {
    if (ctx.replica_id() != replicas() - 1) return;
    mean.update(ctx, torch::tensor({2.0, 4.0}));
    mean.update(ctx, torch::tensor(9.0));
    accuracy.update(ctx, torch::zeros({0, 3}), torch::zeros({0}, torch::kLong));
  });
  EXPECT_EQ(mean.result(), 5.0);
  EXPECT_EQ(mean.count(), 3.0);
  EXPECT_TRUE(std::isnan(accuracy.result())) << "an empty part is nothing";
}

TEST_P(MetricsOf, AreNaNOfNothingAndAgainAfterReset) {
  const All all(strategy_);
  const metrics::Throughput speed(strategy_);
  const auto expect_nothing = [&] {
    for (const double result : all.results()) EXPECT_TRUE(std::isnan(result));
    EXPECT_EQ(all.loss.count(), 0);
    EXPECT_TRUE(std::isnan(speed.result()));
    EXPECT_EQ(speed.count(), 0);
  };
  expect_nothing();
  run([&](ReplicaContext& ctx) {
    all.loss.update(ctx, torch::ones({2}));
    speed.update(ctx, 3);
  });
  EXPECT_EQ(all.loss.result(), 1);
  all.loss.reset();
  speed.reset();
  expect_nothing();
  run([&](ReplicaContext& ctx) { all.loss.update(ctx, torch::zeros({2})); });
  EXPECT_EQ(all.loss.result(), 0);
}

TEST_P(MetricsOf, WeighValuesByNumbersRowsAndElements) {
  const metrics::Mean mean(strategy_, "mean");
  const auto result_of = [&](const Tensor& values, const metrics::Weights& weights) {
    mean.reset();
    run([&](ReplicaContext& ctx) { mean.update(ctx, values, weights); });
    return std::pair(mean.result(), mean.count() / static_cast<double>(replicas()));
  };
  using Pair = std::pair<double, double>;
  const Tensor values = torch::tensor({{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}});
  EXPECT_EQ(result_of(values, {}), Pair(3.5, 6));
  EXPECT_EQ(result_of(values, std::nullopt), Pair(3.5, 6));
  EXPECT_EQ(result_of(values, std::optional<Tensor>(torch::tensor(2))), Pair(3.5, 12));
  EXPECT_EQ(result_of(values, 0.5), Pair(3.5, 3));
  EXPECT_EQ(result_of(values, torch::tensor({1, 0, 0})), Pair(1.5, 2));
  EXPECT_EQ(result_of(values, torch::tensor({{0.0, 1.0}, {0.0, 0.0}, {3.0, 0.0}})), Pair((2.0 + 15.0) / 4, 4));
  EXPECT_EQ(result_of(torch::tensor({true, false, true, true}), {}), Pair(0.75, 4));
  EXPECT_EQ(result_of(torch::tensor({1, 2}, torch::kByte), {}), Pair(1.5, 2));
}

TEST_P(MetricsOf, AValueOfWeightZeroDoesNotCountWhateverItHolds) {
  const metrics::Mean mean(strategy_, "mean");
  const double nan = std::nan("");
  run([&](ReplicaContext& ctx) {
    mean.update(ctx, torch::tensor({nan, 3.0, std::numeric_limits<double>::infinity()}), torch::tensor({0, 1, 0}));
    mean.update(ctx, torch::tensor(nan), 0);
  });
  EXPECT_EQ(mean.result(), 3.0);
  run([&](ReplicaContext& ctx) { mean.update(ctx, torch::tensor({nan}), 1); });
  EXPECT_TRUE(std::isnan(mean.result())) << "what counts is not hidden";
}

TEST_P(MetricsOf, MeanLossesWeighedByTheirPartsAreTheMeanOverTheBatch) {
  const Samples samples;
  const metrics::Mean loss(strategy_, "loss");
  const metrics::Perplexity perplexity(strategy_);
  for (const auto& batch : samples.on(strategy_).epoch(0)) {
    strategy_.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
      const Tensor part_mean = F::cross_entropy(part.input, part.target);  // NaN for an empty part
      loss.update(ctx, part_mean, part.size());
      perplexity.update(ctx, part_mean, part.size());
    });
  }
  EXPECT_NEAR(loss.result(), samples.losses().mean().item<double>(), 1e-6);
  EXPECT_EQ(loss.count(), kSamples);
  EXPECT_NEAR(perplexity.result(), std::exp(loss.result()), 1e-12);
}

TEST_P(MetricsOf, SumInFloat64WhateverTheDtype) {
  const metrics::Mean mean(strategy_, "mean");
  run([&](ReplicaContext& ctx) {
    mean.update(ctx, torch::full({1000}, 300.0, torch::kBFloat16));  // 300 ones more are lost in bfloat16
    mean.update(ctx, torch::ones({1000}, torch::kBFloat16));
  });
  EXPECT_EQ(mean.result(), 150.5);
}

TEST_P(MetricsOf, TakeLogitsAndValuesInHalfPrecisionAndNarrowIntegers) {
  const metrics::Mean mean(strategy_);
  const metrics::Accuracy accuracy(strategy_);
  const metrics::TopKAccuracy top(strategy_, "top", 1);
  const metrics::Perplexity perplexity(strategy_);
  strategy_.run([&](ReplicaContext& ctx) {
    mean.update(ctx, torch::full({300}, 200, torch::kByte));
    for (const auto type : {torch::kHalf, torch::kBFloat16}) {
      const Tensor logits = torch::tensor({{0.0, 0.0}, {0.0, 0.0}}).to(type);
      const Tensor targets = torch::zeros({2}, torch::kByte);
      accuracy.update(ctx, logits, targets);
      top.update(ctx, logits, targets);
      perplexity.update(ctx, logits, targets);
    }
  });
  EXPECT_EQ(mean.result(), 200);
  EXPECT_EQ(accuracy.result(), 1);
  EXPECT_EQ(top.result(), 1);
  EXPECT_NEAR(perplexity.result(), 2, 1e-6);
}

TEST_P(MetricsOf, KeepNoGraph) {
  const metrics::Mean mean(strategy_, "mean");
  const metrics::Perplexity perplexity(strategy_);
  run([&](ReplicaContext& ctx) {
    const Tensor x = torch::ones({2, 3}, torch::requires_grad());
    mean.update(ctx, x * 2, x.select(1, 0));
    perplexity.update(ctx, x * 2, torch::zeros({2}, torch::kLong));
    (x * 2).sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({2, 3}, 2.0)));
  });
  for (const Variable& variable : strategy_.variables()) {
    for (const Tensor& component : variable.components()) EXPECT_FALSE(component.requires_grad());
    run([&](ReplicaContext& ctx) { EXPECT_FALSE(variable.value(ctx).requires_grad()); });
  }
}

TEST_P(MetricsOf, AccuracyTakesLogitsAsCrossEntropyDoesOrPredictions) {
  const metrics::Accuracy accuracy(strategy_);
  const auto result_of = [&](const Tensor& predictions, const Tensor& targets, const metrics::Weights& weights = {}) {
    accuracy.reset();
    run([&](ReplicaContext& ctx) { accuracy.update(ctx, predictions, targets, weights); });
    return accuracy.result();
  };
  const Tensor logits = torch::tensor({{0.1, 0.9, 0.0}, {0.5, 0.2, 0.5}, {0.0, 0.1, 0.2}, {0.0, 0.1, 0.2}});
  const Tensor targets = torch::tensor({1, 2, 2, 0});
  EXPECT_EQ(result_of(logits, targets), 0.5) << "of equal logits the first is the prediction";
  EXPECT_EQ(result_of(logits.to(torch::kHalf), targets.to(torch::kInt)), 0.5);
  EXPECT_EQ(result_of(logits, torch::tensor({1, -100, 2, -100})), 1.0);
  EXPECT_EQ(accuracy.count(), static_cast<double>(2 * replicas()));
  EXPECT_EQ(result_of(logits, targets, torch::tensor({1, 1, 0, 2})), 0.25);
  EXPECT_EQ(result_of(logits.t().unsqueeze(0), targets.unsqueeze(0)), 0.5) << "[1, 3, 4]: classes are dimension 1";
  EXPECT_EQ(result_of(logits[0], torch::tensor(1)), 1.0) << "one sample without a dimension for it";
  EXPECT_EQ(result_of(torch::tensor({1, 2, 3}), torch::tensor({1, 2, 0})), 2.0 / 3);
  EXPECT_EQ(result_of(torch::tensor({true, false}), torch::tensor({1, 1})), 0.5);
}

TEST_P(MetricsOf, TopKAccuracyCountsTiesAndNeverNaN) {
  const auto result_of = [&](int64_t k, const Tensor& logits, int64_t target) {
    const metrics::TopKAccuracy top(strategy_, "top", k);
    run([&](ReplicaContext& ctx) { top.update(ctx, logits.unsqueeze(0), torch::tensor({target})); });
    return top.result();
  };
  const double nan = std::nan("");
  const Tensor logits = torch::tensor({0.1, 0.7, 0.7, 0.7, 0.9});
  EXPECT_EQ(result_of(1, logits, 4), 1);
  EXPECT_EQ(result_of(1, logits, 1), 0);
  for (const int64_t tied : {1, 2, 3}) EXPECT_EQ(result_of(2, logits, tied), 1) << tied;
  EXPECT_EQ(result_of(4, logits, 0), 0);
  EXPECT_EQ(result_of(5, logits, 0), 1);
  EXPECT_EQ(result_of(1, torch::tensor({nan, 0.5}), 1), 0) << "NaN is above it";
  EXPECT_EQ(result_of(2, torch::tensor({nan, 0.5}), 1), 1);
  EXPECT_EQ(result_of(2, torch::tensor({nan, 0.5}), 0), 0) << "NaN is never right";
}

TEST_P(MetricsOf, PerplexityOfEqualLogitsIsTheNumberOfClasses) {
  const metrics::Perplexity perplexity(strategy_);
  run([&](ReplicaContext& ctx) {
    perplexity.update(ctx, torch::zeros({4, 10, 3}), torch::full({4, 3}, ctx.replica_id() % 10, torch::kLong));
    perplexity.update(ctx, torch::zeros({2, 10}, torch::kHalf), torch::tensor({3, -100}));
    perplexity.update(ctx, torch::full({5}, std::log(10.0), torch::kDouble));
  });
  EXPECT_NEAR(perplexity.result(), 10, 1e-5);
  EXPECT_EQ(perplexity.count(), static_cast<double>(18 * replicas()));
}

TEST_P(MetricsOf, ThroughputCountsSamplesAndTime) {
  const metrics::Throughput speed(strategy_, "samples/s");
  for (int i = 0; i < 3; ++i) {
    run([&](ReplicaContext& ctx) { speed.update(ctx, ctx.replica_id() + 1); });
  }
  EXPECT_EQ(speed.count(), 3 * replicas() * (replicas() + 1) / 2);
  EXPECT_GT(speed.seconds(), 0);
  EXPECT_EQ(speed.result(), static_cast<double>(speed.count()) / speed.seconds());
  strategy_.evaluate([&](ReplicaContext& ctx) { speed.update(ctx, torch::tensor(1)); });
  EXPECT_EQ(speed.count(), 3 * replicas() * (replicas() + 1) / 2 + replicas());
  const double before = speed.seconds();
  EXPECT_EQ(speed.seconds(), before) << "time ends with the latest update";
  for (const Variable& variable : strategy_.variables())
    EXPECT_EQ(variable.dtype(), torch::kLong) << "time is no state";
}

TEST_P(MetricsOf, AreOnReadVariablesOfTheStrategyAndMayOutliveIt) {
  std::optional<metrics::Mean> kept;
  {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = replicas()});
    kept.emplace(strategy, "loss");
    strategy.run([&](ReplicaContext& ctx) { kept->update(ctx, torch::tensor({1.0, 2.0})); });
    const auto variables = strategy.variables();
    ASSERT_EQ(variables.size(), 1u);
    EXPECT_EQ(variables[0].name(), "loss");
    EXPECT_EQ(variables[0].synchronization(), VariableSynchronization::kOnRead);
    EXPECT_EQ(variables[0].aggregation(), VariableAggregation::kSum);
    EXPECT_FALSE(variables[0].trainable());
    EXPECT_TRUE(torch::equal(variables[0].read(), torch::tensor({3.0, 2.0}, torch::kDouble) * replicas()));
    variables[0].assign(torch::tensor({7.0, 2.0}, torch::kDouble));  // as a restore does
  }
  EXPECT_EQ(kept->result(), 3.5);
  EXPECT_EQ(kept->name(), "loss");
}

TEST_P(MetricsOf, MayBeReadByAMergeFunction) {
  const metrics::Mean mean(strategy_, "mean");
  const auto results = strategy_.run([&](ReplicaContext& ctx) {
    mean.update(ctx, torch::full({}, ctx.replica_id().value()));
    return ctx.merge_call([&](Strategy&) { return mean.result(); });
  });
  for (const double result : results) EXPECT_EQ(result, static_cast<double>(replicas() - 1) / 2);
}

INSTANTIATE_TEST_SUITE_P(Shapes, MetricsOf,
                         ::testing::Values(std::pair<int64_t, int>{1, 1}, std::pair<int64_t, int>{3, 1},
                                           std::pair<int64_t, int>{8, 2}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.first) + "D" + std::to_string(shape.param.second);
                         });

/// Results over two epochs of `samples`, on a strategy.
std::vector<double> results_on(Strategy& strategy) {
  const Samples samples(150);
  const All all(strategy);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    for (const auto& batch : samples.on(strategy).epoch(epoch)) {
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) { all.update(ctx, part); });
    }
  }
  return all.results();
}

TEST(Metrics, OfTheSameReplicasAreTheSameBitsOnAnyLanesAndStrategy) {
  for (const int64_t replicas : {6, 8}) {
    std::optional<std::vector<double>> expected;
    for (int count = 1; count <= replicas; ++count) {
      if (replicas % count != 0) continue;
      for (const Copies copies : {Copies::kPerMemory, Copies::kPerReplica}) {
        MirroredStrategy strategy({.devices = lanes(count), .replicas = replicas, .copies = copies});
        const auto results = results_on(strategy);
        if (!expected) expected = results;
        EXPECT_EQ(results, *expected) << replicas << " replicas on " << count << " lanes";
      }
    }
  }
  OneDeviceStrategy one;
  MirroredStrategy mirrored({.devices = lanes(1), .replicas = 1});
  EXPECT_EQ(results_on(one), results_on(mirrored));
}

TEST(Metrics, OfAnyNumberOfReplicasAreWithin1e6OfOneDeviceAndCountsExact) {
  OneDeviceStrategy one;
  const auto expected = results_on(one);
  for (const int64_t replicas : {2, 3, 7, 12}) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = replicas});
    const auto results = results_on(strategy);
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_NEAR(results[i], expected[i], 1e-6 * expected[i]) << "metric " << i << " of " << replicas << " replicas";
    }
    EXPECT_EQ(results[1], expected[1]) << "accuracy is a quotient of counts";
    EXPECT_EQ(results[2], expected[2]);
  }
}

}  // namespace
}  // namespace lockstep
