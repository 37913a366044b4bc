// Metrics name each wrong argument, and keep what they had.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "lockstep/strategy/metrics.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::expect_step_error;
using testing::lanes;
using torch::Tensor;

class MetricsMisuseOf : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  int64_t replicas() const { return GetParam().first; }
  using Update = std::function<void(ReplicaContext&)>;
  /// The last replica gets this UsageError.
  void expect_refused(const Update& update, std::string_view code, std::initializer_list<std::string_view> values,
                      const testing::Where& where = testing::Where::current()) {
    const auto error = testing::error_from<ReplicaError>(
        [&] {
          strategy_.run([&](ReplicaContext& ctx) {
            if (ctx.replica_id() == replicas() - 1) update(ctx);
          });
        },
        where);
    expect_error<UsageError>([&] { std::rethrow_if_nested(error); }, code, values, where);
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
  const std::string replica = "replica " + std::to_string(replicas() - 1);
  const auto expect = [&](const char* metric, std::string_view code, std::initializer_list<std::string_view> values,
                          const Update& update, const testing::Where& where = testing::Where::current()) {
    expect_refused(update, code, {metric, replica}, where);
    expect_refused(update, code, values, where);
  };
  const char* of_mean = "metrics::Mean 'loss'";
  expect(of_mean, "LS-NOT-DENSE", {"values", "no tensor"}, [&](auto& ctx) { loss.update(ctx, Tensor()); });
  expect(of_mean, "LS-DTYPE", {"values", "ComplexFloat [2]"},
         [&](auto& ctx) { loss.update(ctx, torch::zeros({2}, torch::kComplexFloat)); });
  expect(of_mean, "LS-NOT-DENSE", {"values", "sparse Float [2, 3]"},
         [&](auto& ctx) { loss.update(ctx, logits.to_sparse()); });
  expect(of_mean, "LS-SHAPE", {"weights of shape [3]", "values of shape [2, 3]"},
         [&](auto& ctx) { loss.update(ctx, logits, torch::ones({3})); });
  expect(of_mean, "LS-SHAPE", {"weights of shape [2, 1]", "values of shape [2]"}, [&](auto& ctx) {
    loss.update(ctx, torch::ones({2}), torch::ones({2, 1}));
  });
  expect(of_mean, "LS-WEIGHT", {"weights"}, [&](auto& ctx) {
    loss.update(ctx, torch::ones({2}), torch::tensor({1.0, -1.0}));
  });
  expect(of_mean, "LS-WEIGHT", {"weights"}, [&](auto& ctx) {
    loss.update(ctx, torch::ones({2}), torch::tensor({1.0, std::nan("")}));
  });
  expect(of_mean, "LS-WEIGHT", {"weight -1"}, [&](auto& ctx) { loss.update(ctx, torch::ones({2}), -1); });
  const char* of_accuracy = "metrics::Accuracy 'accuracy'";
  expect(of_accuracy, "LS-SHAPE", {"logits as Float [2, 3]", "targets of shape [3]"},
         [&](auto& ctx) { accuracy.update(ctx, logits, torch::zeros({3}, torch::kLong)); });
  expect(of_accuracy, "LS-SHAPE", {"logits as Float [2]", "targets of shape [2]"},
         [&](auto& ctx) { accuracy.update(ctx, torch::zeros({2}), targets); });
  expect(of_accuracy, "LS-SHAPE", {"logits as Float [2, 5, 3]", "targets of shape [2, 5]"}, [&](auto& ctx) {
    accuracy.update(ctx, torch::zeros({2, 5, 3}), torch::zeros({2, 5}, torch::kLong));
  });
  expect(of_accuracy, "LS-SHAPE", {"logits as Float [2, 0]", "targets of shape [2]"}, [&](auto& ctx) {
    accuracy.update(ctx, torch::zeros({2, 0}), targets);
  });
  expect(of_accuracy, "LS-SHAPE", {"logits as Float []", "targets of shape []"},
         [&](auto& ctx) { accuracy.update(ctx, torch::tensor(1.0F), torch::tensor(0)); });
  expect(of_accuracy, "LS-SHAPE", {"predictions as Long [3]", "targets of shape [2]"},
         [&](auto& ctx) { accuracy.update(ctx, torch::zeros({3}, torch::kLong), targets); });
  expect(of_accuracy, "LS-DTYPE", {"targets as Float [2, 3]"},
         [&](auto& ctx) { accuracy.update(ctx, logits, logits); });
  expect(of_accuracy, "LS-TARGET", {"target 3", "3 classes"},
         [&](auto& ctx) { accuracy.update(ctx, logits, targets + 3); });
  expect(of_accuracy, "LS-TARGET", {"target -1", "3 classes"},
         [&](auto& ctx) { accuracy.update(ctx, logits, targets - 1); });
  expect("metrics::TopKAccuracy 'top3'", "LS-SHAPE", {"logits of 2 classes", "top 3"}, [&](auto& ctx) {
    top3.update(ctx, torch::zeros({2, 2}), targets);
  });
  expect("metrics::MeanSquaredError 'mean_squared_error'", "LS-SHAPE",
         {"predictions of shape [2, 1]", "targets of shape [2]"}, [&](auto& ctx) {
           error.update(ctx, torch::zeros({2, 1}), torch::zeros({2}));
         });
  expect("metrics::Perplexity 'perplexity'", "LS-WEIGHT", {"weight inf"},
         [&](auto& ctx) { perplexity.update(ctx, torch::zeros({2}), INFINITY); });
  const char* of_speed = "metrics::Throughput 'throughput'";
  expect(of_speed, "LS-COUNT", {"-1 samples"}, [&](auto& ctx) { speed.update(ctx, -1); });
  expect(of_speed, "LS-COUNT", {"0.5 samples"}, [&](auto& ctx) { speed.update(ctx, 0.5); });
  for (const double result : {loss.result(), accuracy.result(), top3.result(), error.result(), perplexity.result()}) {
    EXPECT_TRUE(std::isnan(result));
  }
  EXPECT_EQ(speed.count(), 0);
  expect_error<UsageError>([&] { metrics::TopKAccuracy(strategy_, "top0", 0); }, "LS-OPTION",
                           {"metrics::TopKAccuracy 'top0'", "top 0"});
  expect_error<UsageError>([&] { metrics::Mean(strategy_, "loss"); }, "LS-NAME-TAKEN", {"variable", "'loss'"});
}

TEST_P(MetricsMisuseOf, CallsInTheWrongPlaceAreNamed) {
  const metrics::Mean mean(strategy_, "mean");
  ReplicaContext* stale = nullptr;
  strategy_.run([&](ReplicaContext& ctx) {
    if (ctx.replica_id() == 0) stale = &ctx;
  });
  expect_error<UsageError>([&] { mean.update(*stale, torch::ones({})); }, "LS-OUTSIDE-STEP", {"metrics::Mean"});
  const std::string replica = "replica " + std::to_string(replicas() - 1);
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { mean.result(); }, [&] { mean.count(); }, [&] { mean.reset(); }}) {
    expect_refused([&](ReplicaContext&) { call(); }, "LS-INSIDE-STEP", {"metrics::Mean", replica, "step 1"});
  }
  const metrics::Perplexity perplexity(strategy_);
  const metrics::Throughput speed(strategy_);
  const auto refused = [&](const std::function<void()>& call, const char* who,
                           const testing::Where& where = testing::Where::current()) {
    const auto error =
        testing::caught_from<ReplicaError>([&] { strategy_.run([&](ReplicaContext&) { call(); }); }, where);
    const std::string text = error ? error->what() : "";
    for (const char* const part : {who, "LS-INSIDE-STEP", "run()", "has returned"}) {
      if (text.find(part) == std::string::npos) testing::fail_at(where, std::string("no '") + part + "' in: " + text);
    }
  };
  refused([&] { mean.result(); }, "metrics::Mean::result was called");
  refused([&] { mean.count(); }, "metrics::Mean::count was called");
  refused([&] { mean.reset(); }, "metrics::Mean::reset was called");
  refused([&] { perplexity.result(); }, "metrics::Perplexity::result was called");
  refused([&] { speed.result(); }, "metrics::Throughput::result was called");
  refused([&] { speed.count(); }, "metrics::Throughput::count was called");
  refused([&] { speed.seconds(); }, "metrics::Throughput::seconds was called");
  refused([&] { speed.reset(); }, "metrics::Throughput::reset was called");
  refused([&] { metrics::Accuracy(strategy_, "late"); }, "the constructor of metrics::Accuracy was called");
  refused([&] { metrics::Throughput(strategy_, "late"); }, "the constructor of metrics::Throughput was called");
  OneDeviceStrategy other;
  const auto update = [&](ReplicaContext& ctx) { mean.update(ctx, torch::ones({})); };
  expect_step_error<UsageError>([&] { other.run(update); }, "LS-OTHER-STRATEGY", {"variable 'mean'"});
}

TEST_P(MetricsMisuseOf, TensorsThatAreNotInTheHostsMemoryAreNamed) {
  const metrics::Mean mean(strategy_);
  const metrics::Accuracy accuracy(strategy_);
  const metrics::Perplexity perplexity(strategy_);
  const Tensor here = torch::zeros({2, 3});
  const Tensor away = torch::zeros({2, 3}, torch::kMeta);
  const Tensor targets = torch::zeros({2}, torch::kLong);
  const auto expect = [&](const Update& update, const testing::Where& where = testing::Where::current()) {
    expect_refused(update, "LS-NOT-HOST", {"meta"}, where);
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

TEST(MetricNames, ThatAreTakenNameBothLinesOfTheProgram) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  const metrics::Mean first(strategy, "loss");
  const auto error = testing::error_from<UsageError>([&] { metrics::Accuracy(strategy, "loss"); });
  EXPECT_EQ(error.code(), "LS-NAME-TAKEN");
  const std::string text = error.what();
  const std::size_t here = text.find("metrics_misuse_test.cpp:");
  ASSERT_NE(here, std::string::npos) << text;
  EXPECT_NE(text.find("metrics_misuse_test.cpp:", here + 1), std::string::npos) << text;
}

TEST(EmptyMetrics, AreAUsageErrorUntilTheyAreAssigned) {
  Figures figures;
  const auto expect_empty_handle = [](const auto& call, const testing::Where& where = testing::Where::current()) {
    expect_error<UsageError>(call, "LS-EMPTY-HANDLE", {}, where);
  };
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  const auto expect_empty = [&](const auto& metric) {
    expect_empty_handle([&] { metric.name(); });
    expect_empty_handle([&] { metric.count(); });
    expect_empty_handle([&] { metric.result(); });
    expect_empty_handle([&] { metric.reset(); });
  };
  expect_empty(figures.mean);
  expect_empty(figures.accuracy);
  expect_empty(figures.top);
  expect_empty(figures.error);
  expect_empty(figures.perplexity);
  expect_empty(figures.speed);
  expect_empty_handle([&] { figures.speed.seconds(); });
  strategy.run([&](ReplicaContext& ctx) {
    const Tensor logits = torch::zeros({2, 3});
    const Tensor targets = torch::zeros({2}, torch::kLong);
    expect_empty_handle([&] { figures.mean.update(ctx, logits); });
    expect_empty_handle([&] { figures.accuracy.update(ctx, logits, targets); });
    expect_empty_handle([&] { figures.top.update(ctx, logits, targets); });
    expect_empty_handle([&] { figures.error.update(ctx, logits, logits); });
    expect_empty_handle([&] { figures.perplexity.update(ctx, logits, targets); });
    expect_empty_handle([&] { figures.speed.update(ctx, 1); });
  });
  figures.mean = metrics::Mean(strategy, "mean");
  strategy.run([&](ReplicaContext& ctx) { figures.mean.update(ctx, torch::full({2}, 3.0)); });
  EXPECT_EQ(figures.mean.result(), 3);
}

}  // namespace
}  // namespace lockstep
