// What a captured step notices, so that it runs as it is: all that a replay could not repeat.
#include <gtest/gtest.h>
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
        return [&s, k = std::make_shared<std::atomic<int>>(0)](ReplicaContext& ctx, const Batch& batch) {
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

/// Steps that write memory in a way that no operator tells of; `k` counts the calls.
using Writes = std::function<Tensor(const Tensor& like, const Tensor& kept, int k)>;

TEST(CapturedStep, RunsAsItIsHoweverMemoryIsWrittenWithoutAnOperator) {
  const std::vector<Writes> all{[](const Tensor& like, const Tensor&, int k) {
                                  Tensor made = torch::empty_like(like);
                                  for (int64_t i = 0; i < made.numel(); ++i)
                                    made.data_ptr<float>()[i] = static_cast<float>(k);
                                  return made;
                                },
                                [](const Tensor&, const Tensor&, int k) {
                                  const Tensor made = torch::zeros({24});
                                  const Tensor shown = made.view({24, 1}).narrow(0, 0, 12);
                                  made.data_ptr<float>()[1] = static_cast<float>(k);
                                  return shown;
                                },
                                [](const Tensor&, const Tensor&, int k) {
                                  const Tensor made = torch::zeros({12, 2});
                                  made.accessor<float, 2>()[1][0] = static_cast<float>(k);
                                  return made.narrow(1, 0, 1);
                                },
                                [](const Tensor& like, const Tensor&, int k) {
                                  const Tensor made = torch::zeros_like(like);
                                  made[0].fill_(1);
                                  made.data_ptr<float>()[1] = static_cast<float>(k);
                                  return made;
                                },
                                [](const Tensor&, const Tensor& kept, int k) {
                                  kept.data_ptr<float>()[2] = static_cast<float>(k);
                                  return kept;
                                },
                                [](const Tensor&, const Tensor&, int k) {
                                  std::vector<float> numbers(12, static_cast<float>(k));
                                  return torch::from_blob(numbers.data(), {12, 1}).clone();
                                }};
  for (const bool is_returned : {false, true}) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string text = expect_same(
          [&](Setting& s) {
            return [&, kept = torch::zeros({12, 1}), k = std::make_shared<int>(0)](ReplicaContext& ctx,
                                                                                   const Batch& batch) {
              const Tensor own = all[i](batch.target, kept, ++*k);
              const Tensor target = is_returned ? batch.target : batch.target + own;
              const Tensor loss = s.loss(ctx, {.input = batch.input, .target = target, .global_size = 12});
              loss.backward();
              s.optimizer.step(ctx);
              return is_returned ? own.detach() : loss.detach();
            };
          },
          12, 1);
      EXPECT_NE(text.find("runs as it is"), std::string::npos) << i << ": " << text;
    }
  }
}

TEST(CapturedStep, RunsAsItIsWhereTheStateOfAGeneratorIsSet) {
  const std::string text = expect_same([](Setting& s) {
    return [&s](ReplicaContext& ctx, const Batch& batch) {
      at::Generator random = ctx.random();
      const Tensor state = random.get_state();
      const Tensor noise = torch::rand_like(batch.input);
      random.set_state(state);
      const Tensor loss = s.loss(ctx, {.input = batch.input + noise, .target = batch.target, .global_size = 12});
      loss.backward();
      s.optimizer.step(ctx);
      return loss.detach();
    };
  });
  EXPECT_NE(text.find("the state of a random generator"), std::string::npos) << text;
}

/// Expects that a step which changes at run 20 is found out by the next comparison, with a finding.
template <class Make>
void expect_found_out(const Make& make) {
  Setting setting(1);
  bool has_changed = false;
  const auto captured = setting.strategy.capture(make(setting, has_changed));
  for (int k = 0; k < 40; ++k) {
    has_changed = k >= 20;
    setting.strategy.run(setting.batch(k), captured);
  }
  EXPECT_NE(captured.describe().find("another one than it was"), std::string::npos) << captured.describe();
  ASSERT_EQ(setting.strategy.findings().size(), 1U);
  EXPECT_EQ(setting.strategy.findings().front().code, "LS-NOT-CAPTURED");
}

TEST(CapturedStep, IsComparedWithItsFunctionLater) {
  const auto with = [](Setting& s, ReplicaContext& ctx, const Tensor& loss, const StepOptions& options = {}) {
    loss.backward();
    s.optimizer.step(ctx, options);
    return loss.detach();
  };
  expect_found_out([&](Setting& s, bool& has_changed) {
    return [&](ReplicaContext& ctx, const Batch& batch) {
      return with(s, ctx, s.loss(ctx, batch) * (has_changed ? 0.5 : 1.0));
    };
  });
  expect_found_out([&](Setting& s, bool& has_changed) {
    return [&](ReplicaContext& ctx, const Batch& batch) {
      const Tensor loss = s.loss(ctx, batch);
      return with(s, ctx, has_changed ? loss.abs() : loss);
    };
  });
  expect_found_out([&](Setting& s, bool& has_changed) {
    return [&](ReplicaContext& ctx, const Batch& batch) {
      return with(s, ctx, s.loss(ctx, batch), {.clip_value = has_changed ? 0.5 : 1.0});
    };
  });
  expect_found_out([&](Setting& s, bool& has_changed) {
    return [&](ReplicaContext& ctx, const Batch& batch) {
      with(s, ctx, s.loss(ctx, batch));
      return std::make_tuple(batch.input.detach(), has_changed);
    };
  });
}

TEST(CapturedStep, RefusesViewsThatItDidNotMake) {
  const Tensor all = torch::arange(400).to(torch::kFloat).sin().view({100, 4});
  Setting setting(1);
  const auto step = [&](ReplicaContext& ctx, const Batch& batch) {
    return setting.model(ctx)->forward(batch.input + all.narrow(0, 0, 6)).detach();
  };
  const auto captured = setting.strategy.capture(step);
  for (int k = 0; k < 8; ++k) {
    const Batch batch{.input = all.narrow(0, k < 4 ? 6 : 12, 6)};
    const auto one = setting.strategy.evaluate(batch, captured);
    const auto other = setting.strategy.evaluate(batch, step);
    EXPECT_TRUE(torch::equal(*one.begin(), *other.begin())) << k;
  }
}

TEST(CapturedStep, RefusesAnotherShareOfTheBatch) {
  Setting setting(1);
  const auto captured = setting.strategy.capture([&](ReplicaContext& ctx, const Tensor& x) {
    const Tensor loss = ctx.scale_loss(setting.model(ctx)->forward(x).pow(2).mean());
    loss.backward();
    setting.optimizer.step(ctx);
  });
  const auto step = [&](ReplicaContext& ctx, const Batch& batch) { captured(ctx, batch.input); };
  PerReplica<Batch> batch = setting.batch(1);
  for (int k = 0; k < 5; ++k) setting.strategy.run(batch, step);
  EXPECT_GT(captured.num_replayed(), 0) << captured.describe();
  batch.begin()->global_size *= 2;
  expect_step_error<DivergenceError>([&] { setting.strategy.run(batch, step); }, "LS-CAPTURE-SHAPE", {"0.5"});
}

TEST(CapturedStep, RefusesALeafThatIsNoVariable) {
  Setting setting(1);
  const Tensor own = torch::ones({}).requires_grad_();
  const auto captured = setting.strategy.capture([&](ReplicaContext& ctx, const Batch& batch) {
    const Tensor loss = setting.loss(ctx, batch) * own;
    loss.backward();
    setting.optimizer.step(ctx);
  });
  for (int k = 0; k < 6; ++k) setting.strategy.run(setting.batch(k), captured);
  EXPECT_TRUE(own.grad().defined());
  EXPECT_EQ(captured.num_replayed(), 0);
  EXPECT_NE(captured.describe().find("is no variable"), std::string::npos) << captured.describe();
}

}  // namespace
}  // namespace lockstep::testing
