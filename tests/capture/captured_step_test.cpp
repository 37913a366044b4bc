#include "lockstep/capture/captured_step.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/capture/setting.h"
#include "tests/support/errors.h"

namespace lockstep::testing {
namespace {

using torch::Tensor;

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

TEST(CapturedStep, SeesANewGradientInAnOldTensor) {
  const std::string text = expect_same([](Setting& s) {
    return [&s](ReplicaContext& ctx, const Batch& batch) {
      const Tensor loss = s.loss(ctx, batch);
      loss.backward();
      const Tensor sum = ctx.all_reduce(Reduction::kSum, loss.detach());
      Tensor& gradient = s.model(ctx)->a->weight.mutable_grad();
      gradient.set_data(gradient * 0.125);
      s.optimizer.step(ctx, {.gradients_changed_on_purpose = true});
      return loss.detach() + sum;
    };
  });
  EXPECT_FALSE(text.empty());
}

TEST(CapturedStep, ViewsAnArgumentOfAnotherTypeWhereItLies) {
  Setting setting(1);
  const Tensor all = torch::arange(160).to(torch::kFloat).sin().view({40, 4});
  const Tensor complex = torch::view_as_complex(all.view({40, 2, 2}));
  const auto step = [&](ReplicaContext& ctx, const Tensor& x) {
    return setting.model(ctx)->forward(torch::view_as_real(x).reshape({-1, 4})).detach();
  };
  const auto captured = setting.strategy.capture(step);
  for (int k = 0; k < 8; ++k) {
    const Tensor x = complex.narrow(0, 3 * k, 5);
    const auto one = setting.strategy.evaluate(x, captured);
    const auto other = setting.strategy.evaluate(x, step);
    EXPECT_TRUE(torch::equal(*one.begin(), *other.begin())) << k;
  }
  EXPECT_GT(captured.num_replayed(), 4) << captured.describe();
}

TEST(CapturedStep, TakesNumbersAsArguments) {
  Setting plain;
  Setting with_capture;
  const auto step_of = [](Setting& s) {
    return [&s](ReplicaContext& ctx, const Batch& batch, double factor, const std::string& name) {
      const Tensor loss = s.loss(ctx, batch) * factor * static_cast<double>(name.size());
      loss.backward();
      s.optimizer.step(ctx);
      return loss.detach();
    };
  };
  const auto step = step_of(plain);
  const auto captured = with_capture.strategy.capture(step_of(with_capture));
  for (int k = 0; k < 24; ++k) {
    const double factor = k % 2 == 0 ? 0.5 : 2.0;
    const std::string name = k % 3 == 0 ? "a" : "bc";
    plain.optimizer.set_learning_rate(0.01 / (1 + k));
    with_capture.optimizer.set_learning_rate(0.01 / (1 + k));
    plain.strategy.run(plain.batch(k), factor, name, step);
    with_capture.strategy.run(with_capture.batch(k), factor, name, captured);
  }
  EXPECT_TRUE(are_equal(plain.weights(), with_capture.weights()));
  EXPECT_GT(captured.num_replayed(), 16) << captured.describe();
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

TEST(CapturedStep, ViewsAVariableOfAnotherTypeWhereItLies) {
  Setting setting(1);
  std::vector<Variable> all;
  for (int64_t i = 0; i < 3; ++i) {
    const Tensor parts = torch::arange(8).add(8 * i).to(torch::kFloat).sin().view({4, 2});
    all.push_back(setting.strategy.make_variable(torch::view_as_complex(parts), {.name = "z" + std::to_string(i)}));
  }
  const auto step = [&](ReplicaContext& ctx, const Tensor& x) {
    Tensor sum = x.clone();
    for (const Variable& one : all) sum = sum * 2 + torch::view_as_real(one.value(ctx)).select(1, 1);
    return sum.detach();
  };
  const auto captured = setting.strategy.capture(step);
  for (int k = 0; k < 8; ++k) {
    const Tensor x = torch::full({4}, 0.5 * k);
    const auto one = setting.strategy.evaluate(x, captured);
    const auto other = setting.strategy.evaluate(x, step);
    EXPECT_TRUE(have_same_bits(*one.begin(), *other.begin())) << k;
    all[1].assign(torch::view_as_complex(torch::full({4, 2}, 0.25 * k)));
  }
  EXPECT_GT(captured.num_replayed(), 4) << captured.describe();
}

}  // namespace
}  // namespace lockstep::testing
