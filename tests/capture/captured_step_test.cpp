#include "lockstep/capture/captured_step.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/capture/setting.h"

namespace lockstep::testing {
namespace {

using torch::Tensor;

/// Runs `make(setting)`'s step so often, as it is and captured, and expects the same weights.
/// Gives what the captured one says of itself.
template <class Make>
std::string expect_same(const Make& make, int runs = 20, int64_t replicas = 2, int64_t* replayed = nullptr) {
  Setting plain(replicas);
  Setting with_capture(replicas);
  const auto step = make(plain);
  const auto captured = with_capture.strategy.capture(make(with_capture));
  for (int k = 0; k < runs; ++k) {
    const auto one = plain.strategy.run(plain.batch(k), step);
    const auto other = with_capture.strategy.run(with_capture.batch(k), captured);
    for (int64_t r = 0; r < replicas; ++r) EXPECT_TRUE(torch::equal(*(one.begin() + r), *(other.begin() + r))) << k;
  }
  EXPECT_TRUE(are_equal(plain.weights(), with_capture.weights()));
  if (replayed) *replayed = captured.num_replayed();
  return captured.describe();
}

TEST(CapturedStep, SaysWhatItReplays) {
  int64_t replayed = 0;
  const std::string text = expect_same(
      [](Setting& s) {
        return [&s](ReplicaContext& ctx, const Batch& batch) {
          const Tensor loss = s.loss(ctx, batch);
          loss.backward();
          s.optimizer.step(ctx, {.clip_global_norm = 1.0});
          return loss;
        };
      },
      20, 2, &replayed);
  EXPECT_GT(replayed, 20);
  EXPECT_NE(text.find("replica 1, [6, 4] Float"), std::string::npos) << text;
  EXPECT_NE(text.find("replayed in"), std::string::npos) << text;
}

TEST(CapturedStep, RunsAsItIsWhereTheHostReadsAValue) {
  int64_t replayed = 0;
  const std::string text = expect_same(
      [](Setting& s) {
        return [&s](ReplicaContext& ctx, const Batch& batch) {
          const Tensor loss = s.loss(ctx, batch);
          if (loss.item<double>() > 0.05) loss.backward();
          s.optimizer.step(ctx);
          return loss;
        };
      },
      20, 2, &replayed);
  EXPECT_EQ(replayed, 0);
  EXPECT_NE(text.find("aten::_local_scalar_dense"), std::string::npos) << text;
}

TEST(CapturedStep, RunsAsItIsWhereAShapeDependsOnValues) {
  const std::string text = expect_same([](Setting& s) {
    return [&s](ReplicaContext& ctx, const Batch& batch) {
      const Tensor loss = s.loss(ctx, batch) + torch::masked_select(batch.input, batch.input > 0.5).sum() * 0;
      loss.backward();
      s.optimizer.step(ctx);
      return loss;
    };
  });
  EXPECT_NE(text.find("aten::masked_select"), std::string::npos) << text;
}

TEST(CapturedStep, RunsAsItIsWhereItAsksForTheStep) {
  const std::string text = expect_same([](Setting& s) {
    return [&s](ReplicaContext& ctx, const Batch& batch) {
      const Tensor loss = s.loss(ctx, batch) * (1.0 + static_cast<double>(ctx.step() / 7));
      loss.backward();
      s.optimizer.step(ctx);
      return loss;
    };
  });
  EXPECT_NE(text.find("ctx.step()"), std::string::npos) << text;
}

TEST(CapturedStep, RunsAsItIsWhereMemoryIsWrittenWithoutAnOperator) {
  const std::string text = expect_same(
      [](Setting& s) {
        return [&s, buffer = torch::zeros({6, 1}), k = std::make_shared<std::atomic<int>>(0)](ReplicaContext& ctx,
                                                                                              const Batch& batch) {
          const Tensor own = torch::zeros_like(batch.target);
          own.data_ptr<float>()[0] = static_cast<float>(k->fetch_add(1) % 5);
          const Tensor loss = s.loss(ctx, {.input = batch.input, .target = batch.target + own});
          loss.backward();
          s.optimizer.step(ctx);
          return loss;
        };
      },
      20, 1);
  EXPECT_NE(text.find("without an operator"), std::string::npos) << text;
}

TEST(CapturedStep, RunsAsItIsWhereANumberDiffersFromRunToRun) {
  const std::string text = expect_same(
      [](Setting& s) {
        return [&s, k = std::make_shared<std::atomic<int>>(0)](ReplicaContext& ctx, const Batch& batch) {
          const Tensor loss = s.loss(ctx, batch) * (1.0 + 0.1 * static_cast<double>(k->fetch_add(1)));
          loss.backward();
          s.optimizer.step(ctx);
          return loss;
        };
      },
      20, 1);
  EXPECT_NE(text.find("is another one in each run"), std::string::npos) << text;
}

TEST(CapturedStep, ReadsAnewATensorThatItsFunctionRefersTo) {
  Setting plain;
  Setting with_capture;
  Tensor scales[2] = {torch::ones({}), torch::ones({})};
  const auto step_of = [](Setting& s, const Tensor& scale) {
    return [&s, &scale](ReplicaContext& ctx, const Batch& batch) {
      const Tensor loss = s.loss(ctx, batch) * scale;
      loss.backward();
      s.optimizer.step(ctx);
      return loss.detach();
    };
  };
  const auto step = step_of(plain, scales[0]);
  const auto captured = with_capture.strategy.capture(step_of(with_capture, scales[1]));
  for (int k = 0; k < 20; ++k) {
    for (Tensor& one : scales) one.fill_(1.0 + 0.125 * k);
    plain.strategy.run(plain.batch(k), step);
    with_capture.strategy.run(with_capture.batch(k), captured);
  }
  EXPECT_TRUE(are_equal(plain.weights(), with_capture.weights()));
  EXPECT_GT(captured.num_replayed(), 20);
}

TEST(CapturedStep, NoticesThatATensorOfItsFunctionWasReplaced) {
  Setting plain;
  Setting with_capture;
  Tensor scale = torch::ones({});
  const auto step_of = [&scale](Setting& s) {
    return [&s, &scale](ReplicaContext& ctx, const Batch& batch) {
      const Tensor loss = s.loss(ctx, batch) * scale;
      loss.backward();
      s.optimizer.step(ctx);
      return loss.detach();
    };
  };
  const auto step = step_of(plain);
  const auto captured = with_capture.strategy.capture(step_of(with_capture));
  for (int k = 0; k < 30; ++k) {
    if (k % 7 == 5) scale = torch::full({}, 1.0 + 0.25 * k);
    plain.strategy.run(plain.batch(k), step);
    with_capture.strategy.run(with_capture.batch(k), captured);
  }
  EXPECT_TRUE(are_equal(plain.weights(), with_capture.weights()));
  EXPECT_GT(captured.num_replayed(), 20) << captured.describe();
}

TEST(CapturedStep, NoticesThatAVariableWasFrozen) {
  Setting plain;
  Setting with_capture;
  const auto step_of = [](Setting& s) {
    return [&s](ReplicaContext& ctx, const Batch& batch) {
      const Tensor loss = s.loss(ctx, batch);
      loss.backward();
      s.optimizer.step(ctx);
      return loss.detach();
    };
  };
  const auto step = step_of(plain);
  const auto captured = with_capture.strategy.capture(step_of(with_capture));
  for (int k = 0; k < 24; ++k) {
    for (Setting* one : {&plain, &with_capture}) {
      one->strategy.run([&](ReplicaContext& ctx) { one->model(ctx)->a->weight.requires_grad_(k < 12); });
    }
    plain.strategy.run(plain.batch(k), step);
    with_capture.strategy.run(with_capture.batch(k), captured);
  }
  EXPECT_TRUE(are_equal(plain.weights(), with_capture.weights()));
  EXPECT_GT(captured.num_replayed(), 20) << captured.describe();
}

TEST(CapturedStep, RecordsReductionsAndAssignments) {
  int64_t replayed = 0;
  Setting plain;
  Setting with_capture;
  const auto run = [&](Setting& s, bool is_captured) {
    Variable seen = s.strategy.make_variable(torch::zeros({}), {.name = "seen",
                                                                .trainable = false,
                                                                .synchronization = VariableSynchronization::kOnRead,
                                                                .aggregation = VariableAggregation::kSum});
    const auto step = [&](ReplicaContext& ctx, const Batch& batch) {
      const Tensor loss = s.loss(ctx, batch);
      loss.backward();
      s.optimizer.step(ctx);
      seen.assign_add(ctx, loss.detach());
      return ctx.all_reduce(Reduction::kMax, loss.detach()) + seen.value(ctx);
    };
    std::vector<Tensor> all;
    const auto train = [&](const auto& one) {
      for (int k = 0; k < 20; ++k) {
        const auto results = s.strategy.run(s.batch(k), one);
        all.insert(all.end(), results.begin(), results.end());
      }
    };
    if (is_captured) {
      const auto captured = s.strategy.capture(step);
      train(captured);
      replayed = captured.num_replayed();
    } else {
      train(step);
    }
    all.push_back(seen.read());
    return all;
  };
  EXPECT_TRUE(are_equal(run(plain, false), run(with_capture, true)));
  EXPECT_TRUE(are_equal(plain.weights(), with_capture.weights()));
  EXPECT_GT(replayed, 20);
}

TEST(CapturedStep, HasARecordingForEachShape) {
  Setting plain;
  Setting with_capture;
  const auto step_of = [](Setting& s) {
    return [&s](ReplicaContext& ctx, const Batch& batch) {
      const Tensor loss = s.loss(ctx, batch);
      loss.backward();
      s.optimizer.step(ctx);
      return std::make_tuple(loss.detach(), batch.size());
    };
  };
  const auto step = step_of(plain);
  const auto captured = with_capture.strategy.capture(step_of(with_capture));
  for (int k = 0; k < 40; ++k) {
    const int64_t size = k % 4 == 3 ? 7 : 12;  // the last batch of an epoch is short
    plain.strategy.run(plain.batch(k, size), step);
    const auto results = with_capture.strategy.run(with_capture.batch(k, size), captured);
    EXPECT_EQ(*std::get<1>(results).begin(), (size + 1) / 2);
  }
  EXPECT_TRUE(are_equal(plain.weights(), with_capture.weights()));
  EXPECT_GT(captured.num_replayed(), 40);
}

TEST(CapturedStep, EvaluatesWithARecordingOfItsOwn) {
  Setting setting;
  const auto forward = [&](ReplicaContext& ctx, const Batch& batch) {
    return setting.model(ctx)->forward(batch.input);
  };
  const auto captured = setting.strategy.capture(forward);
  for (int k = 0; k < 12; ++k) {
    const auto one = setting.strategy.evaluate(setting.batch(k), captured);
    const auto other = setting.strategy.evaluate(setting.batch(k), forward);
    EXPECT_TRUE(torch::equal(*one.begin(), *other.begin())) << k;  // no dropout
  }
  EXPECT_GT(captured.num_replayed(), 8);
}

TEST(CapturedStep, PassesOnWhatAReplayedStepThrows) {
  Setting setting;
  auto step = setting.strategy.capture([&](ReplicaContext& ctx, const Batch& batch) {
    const Tensor loss = torch::nn::functional::cross_entropy(setting.model(ctx)->forward(batch.input).expand({-1, 3}),
                                                             batch.target.view({-1}).to(torch::kLong));
    ctx.scale_loss(loss).backward();
    setting.optimizer.step(ctx);
  });
  const auto batch_of = [&](int64_t label) {
    return setting.strategy.split(torch::ones({4, 4}), torch::full({4, 1}, label, torch::kLong));
  };
  for (int k = 0; k < 6; ++k) setting.strategy.run(batch_of(k % 3), step);
  const int64_t replayed = step.num_replayed();
  EXPECT_GT(replayed, 0);
  const std::vector<Tensor> before = setting.weights();
  EXPECT_THROW(setting.strategy.run(batch_of(3), step), ReplicaError);
  EXPECT_TRUE(are_equal(before, setting.weights()));
  setting.strategy.run(batch_of(1), step);
  EXPECT_EQ(step.num_replayed(), replayed + 2);
}

}  // namespace
}  // namespace lockstep::testing
