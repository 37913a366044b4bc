// Metrics name each wrong argument, and keep what they had.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "lockstep/strategy/metrics.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using testing::message_from;
using testing::nested_message_from;
using torch::Tensor;

class MetricsMisuseOf : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  int64_t replicas() const { return GetParam().first; }
  /// The text of the UsageError that the last replica gets.
  std::string refused(const std::function<void(ReplicaContext&)>& update) {
    return nested_message_from<UsageError>([&] {
      strategy_.run([&](ReplicaContext& ctx) {
        if (ctx.replica_id() == replicas() - 1) update(ctx);
      });
    });
  }
  MirroredStrategy strategy_{{.devices = lanes(GetParam().second), .replicas = GetParam().first}};
};

TEST_P(MetricsMisuseOf, WhatIsGivenWronglyNamesTheMetricAndTheReplicaAndAddsNothing) {
  const metrics::Mean loss(strategy_, "loss");
  const metrics::Accuracy accuracy(strategy_);
  const metrics::TopKAccuracy top3(strategy_, "top3", 3);
  const metrics::MeanSquaredError error(strategy_);
  const metrics::Perplexity perplexity(strategy_);
  const metrics::Throughput speed(strategy_);
  const Tensor logits = torch::zeros({2, 3});
  const Tensor targets = torch::zeros({2}, torch::kLong);
  const auto expect = [&](const char* metric, const char* fact, const std::function<void(ReplicaContext&)>& update) {
    const std::string text = refused(update);
    const std::string who = std::string(metric) + " on replica " + std::to_string(replicas() - 1) + " was given ";
    EXPECT_NE(text.find(who + fact), std::string::npos) << who << fact << "\n  in: " << text;
  };
  const char* of_mean = "metrics::Mean 'loss'";
  expect(of_mean, "values as no tensor", [&](auto& ctx) { loss.update(ctx, Tensor()); });
  expect(of_mean, "values as ComplexFloat [2]",
         [&](auto& ctx) { loss.update(ctx, torch::zeros({2}, torch::kComplexFloat)); });
  expect(of_mean, "values as sparse Float [2, 3]", [&](auto& ctx) { loss.update(ctx, logits.to_sparse()); });
  expect(of_mean, "weights of shape [3] for values of shape [2, 3]",
         [&](auto& ctx) { loss.update(ctx, logits, torch::ones({3})); });
  expect(of_mean, "weights of shape [2, 1] for values of shape [2]", [&](auto& ctx) {
    loss.update(ctx, torch::ones({2}), torch::ones({2, 1}));
  });
  expect(of_mean, "weights below 0 or not finite", [&](auto& ctx) {
    loss.update(ctx, torch::ones({2}), torch::tensor({1.0, -1.0}));
  });
  expect(of_mean, "weights below 0 or not finite", [&](auto& ctx) {
    loss.update(ctx, torch::ones({2}), torch::tensor({1.0, std::nan("")}));
  });
  expect(of_mean, "weight -1", [&](auto& ctx) { loss.update(ctx, torch::ones({2}), -1); });
  const char* of_accuracy = "metrics::Accuracy 'accuracy'";
  expect(of_accuracy, "logits as Float [2, 3] for targets of shape [3]",
         [&](auto& ctx) { accuracy.update(ctx, logits, torch::zeros({3}, torch::kLong)); });
  expect(of_accuracy, "logits as Float [2] for targets of shape [2]",
         [&](auto& ctx) { accuracy.update(ctx, torch::zeros({2}), targets); });
  expect(of_accuracy, "logits as Float [2, 5, 3] for targets of shape [2, 5]", [&](auto& ctx) {
    accuracy.update(ctx, torch::zeros({2, 5, 3}), torch::zeros({2, 5}, torch::kLong));
  });
  expect(of_accuracy, "logits as Float [2, 0] for targets of shape [2]", [&](auto& ctx) {
    accuracy.update(ctx, torch::zeros({2, 0}), targets);
  });
  expect(of_accuracy, "logits as Float [] for targets of shape []",
         [&](auto& ctx) { accuracy.update(ctx, torch::tensor(1.0F), torch::tensor(0)); });
  expect(of_accuracy, "predictions as Long [3] for targets of shape [2]",
         [&](auto& ctx) { accuracy.update(ctx, torch::zeros({3}, torch::kLong), targets); });
  expect(of_accuracy, "targets as Float [2, 3]", [&](auto& ctx) { accuracy.update(ctx, logits, logits); });
  expect(of_accuracy, "target 3 for logits of 3 classes",
         [&](auto& ctx) { accuracy.update(ctx, logits, targets + 3); });
  expect(of_accuracy, "target -1 for logits of 3 classes",
         [&](auto& ctx) { accuracy.update(ctx, logits, targets - 1); });
  expect("metrics::TopKAccuracy 'top3'", "logits of 2 classes for the top 3", [&](auto& ctx) {
    top3.update(ctx, torch::zeros({2, 2}), targets);
  });
  expect("metrics::MeanSquaredError 'mean_squared_error'", "predictions of shape [2, 1] for targets of shape [2]",
         [&](auto& ctx) {
           error.update(ctx, torch::zeros({2, 1}), torch::zeros({2}));
         });
  expect("metrics::Perplexity 'perplexity'", "weight inf",
         [&](auto& ctx) { perplexity.update(ctx, torch::zeros({2}), INFINITY); });
  expect("metrics::Throughput 'throughput'", "-1 samples", [&](auto& ctx) { speed.update(ctx, -1); });
  expect("metrics::Throughput 'throughput'", "0.5 samples", [&](auto& ctx) { speed.update(ctx, 0.5); });
  for (const double result : {loss.result(), accuracy.result(), top3.result(), error.result(), perplexity.result()}) {
    EXPECT_TRUE(std::isnan(result));
  }
  EXPECT_EQ(speed.count(), 0);
  message_from<UsageError>([&] { metrics::TopKAccuracy(strategy_, "top0", 0); });
  EXPECT_NE(message_from<UsageError>([&] { metrics::Mean(strategy_, "loss"); }).find("'loss'"), std::string::npos);
}

TEST_P(MetricsMisuseOf, CallsInTheWrongPlaceAreNamed) {
  const metrics::Mean mean(strategy_, "mean");
  ReplicaContext* stale = nullptr;
  strategy_.run([&](ReplicaContext& ctx) {
    if (ctx.replica_id() == 0) stale = &ctx;
  });
  const auto outside = message_from<UsageError>([&] { mean.update(*stale, torch::ones({})); });
  EXPECT_NE(outside.find("metrics::Mean"), std::string::npos) << outside;
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { mean.result(); }, [&] { mean.count(); }, [&] { mean.reset(); }}) {
    const auto inside = refused([&](ReplicaContext&) { call(); });
    EXPECT_NE(inside.find("metrics::Mean was called inside a step"), std::string::npos) << inside;
  }
  OneDeviceStrategy other;
  nested_message_from<UsageError>([&] { other.run([&](ReplicaContext& ctx) { mean.update(ctx, torch::ones({})); }); });
}

TEST_P(MetricsMisuseOf, TensorsThatAreNotInTheHostsMemoryAreNamed) {
  const metrics::Mean mean(strategy_);
  const metrics::Accuracy accuracy(strategy_);
  const metrics::Perplexity perplexity(strategy_);
  const Tensor here = torch::zeros({2, 3});
  const Tensor away = torch::zeros({2, 3}, torch::kMeta);
  const Tensor targets = torch::zeros({2}, torch::kLong);
  const auto expect = [&](const std::function<void(ReplicaContext&)>& update) {
    const std::string text = refused(update);
    EXPECT_NE(text.find("[LS-NOT-HOST]"), std::string::npos) << text;
    EXPECT_NE(text.find("on meta"), std::string::npos) << text;
  };
  expect([&](ReplicaContext& ctx) { mean.update(ctx, away); });
  expect([&](ReplicaContext& ctx) { mean.update(ctx, here, away); });
  expect([&](ReplicaContext& ctx) { accuracy.update(ctx, away, targets); });
  expect([&](ReplicaContext& ctx) { accuracy.update(ctx, here, targets.to(torch::kMeta)); });
  expect([&](ReplicaContext& ctx) { perplexity.update(ctx, away, targets); });
}

INSTANTIATE_TEST_SUITE_P(Shapes, MetricsMisuseOf,
                         ::testing::Values(std::pair<int64_t, int>{1, 1}, std::pair<int64_t, int>{3, 1},
                                           std::pair<int64_t, int>{8, 2}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.first) + "D" + std::to_string(shape.param.second);
                         });

/// A class as users write them: its metrics come when the strategy is there.
struct Figures {
  metrics::Mean mean;
  metrics::Accuracy accuracy;
  metrics::TopKAccuracy top;
  metrics::MeanSquaredError error;
  metrics::Perplexity perplexity;
  metrics::Throughput speed;
};

TEST(EmptyMetrics, AreAUsageErrorUntilTheyAreAssigned) {
  Figures figures;
  const auto code_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const UsageError& error) {
      return error.code();
    } catch (const std::exception& other) {
      return other.what();
    }
    return "nothing was thrown";
  };
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  const auto expect_empty = [&](const auto& metric) {
    EXPECT_EQ(code_of([&] { metric.name(); }), "LS-EMPTY-HANDLE");
    EXPECT_EQ(code_of([&] { metric.count(); }), "LS-EMPTY-HANDLE");
    EXPECT_EQ(code_of([&] { metric.result(); }), "LS-EMPTY-HANDLE");
    EXPECT_EQ(code_of([&] { metric.reset(); }), "LS-EMPTY-HANDLE");
  };
  expect_empty(figures.mean);
  expect_empty(figures.accuracy);
  expect_empty(figures.top);
  expect_empty(figures.error);
  expect_empty(figures.perplexity);
  expect_empty(figures.speed);
  EXPECT_EQ(code_of([&] { figures.speed.seconds(); }), "LS-EMPTY-HANDLE");
  strategy.run([&](ReplicaContext& ctx) {
    const Tensor logits = torch::zeros({2, 3});
    const Tensor targets = torch::zeros({2}, torch::kLong);
    EXPECT_EQ(code_of([&] { figures.mean.update(ctx, logits); }), "LS-EMPTY-HANDLE");
    EXPECT_EQ(code_of([&] { figures.accuracy.update(ctx, logits, targets); }), "LS-EMPTY-HANDLE");
    EXPECT_EQ(code_of([&] { figures.top.update(ctx, logits, targets); }), "LS-EMPTY-HANDLE");
    EXPECT_EQ(code_of([&] { figures.error.update(ctx, logits, logits); }), "LS-EMPTY-HANDLE");
    EXPECT_EQ(code_of([&] { figures.perplexity.update(ctx, logits, targets); }), "LS-EMPTY-HANDLE");
    EXPECT_EQ(code_of([&] { figures.speed.update(ctx, 1); }), "LS-EMPTY-HANDLE");
  });
  figures.mean = metrics::Mean(strategy, "mean");
  strategy.run([&](ReplicaContext& ctx) { figures.mean.update(ctx, torch::full({2}, 3.0)); });
  EXPECT_EQ(figures.mean.result(), 3);
}

}  // namespace
}  // namespace lockstep
