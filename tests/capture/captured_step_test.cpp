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
              return is_returned ? own.detach().clone() : loss.detach();
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

}  // namespace
}  // namespace lockstep::testing
