// Workers whose programs differ: what one worker does otherwise than the others is an error on all of them, before any
// of them has used the others' values.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/unlike_workers.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::expect_refused;
using testing::expect_step_refused;
using testing::is_last;
using testing::WorkerProgram;

VariableOptions on_read(const char* name) {
  return {.name = name, .synchronization = VariableSynchronization::kOnRead, .aggregation = VariableAggregation::kMean};
}

TEST(WorkersDiffer, InTheVariableThatTheyRead) {
  expect_refused(
      [](Strategy& strategy) {
        const Variable a = strategy.make_variable(torch::ones({2}), on_read("a"));
        const Variable b = strategy.make_variable(torch::full({2}, 100.0), on_read("b"));
        (is_last(strategy) ? b : a).read();
      },
      "LS-WORKER-ORDER", {"Variable::read of 'a'", "Variable::read of 'b'", "worker 2"});
}

TEST(WorkersDiffer, InTheMetricThatTheyAsk) {
  expect_refused(
      [](Strategy& strategy) {
        const metrics::Mean loss(strategy, "loss");
        const metrics::Mean norm(strategy, "norm");
        (is_last(strategy) ? norm : loss).reset();
      },
      "LS-WORKER-ORDER", {"'loss'", "'norm'", "worker 2"});
}

TEST(WorkersDiffer, InTheVariableThatTheyUpdate) {
  expect_refused(
      [](Strategy& strategy) {
        const Variable a = strategy.make_variable(torch::ones({2}), {.name = "a"});
        const Variable b = strategy.make_variable(torch::ones({2}), {.name = "b"});
        strategy.update_from(1, is_last(strategy) ? b : a, torch::full({2}, 8.0));
      },
      "LS-WORKER-ORDER", {"Strategy::update_from of 'a'", "Strategy::update_from of 'b'"});
}

TEST(WorkersDiffer, InTheNameOfAVariableOrModule) {
  expect_refused(
      [](Strategy& strategy) {
        strategy.make_variable(torch::ones({2}), {.name = is_last(strategy) ? "bias" : "weight"});
      },
      "LS-WORKER-ORDER", {"'bias'", "'weight'"});
  expect_refused(
      [](Strategy& strategy) {
        strategy.make_module([] { return torch::nn::Linear(2, 2); }, {.name = is_last(strategy) ? "b" : "a"});
      },
      "LS-WORKER-ORDER", {"'a'", "'b'"});
}

TEST(WorkersDiffer, InTheSizesOfAModule) {
  using torch::nn::LinearOptions;
  // By name, dtype and shape, both sides, and who is on each.
  expect_refused(
      [](Strategy& strategy) {
        const int64_t width = strategy.worker_index() == 1 ? 5 : 4;
        strategy.make_module([&] { return torch::nn::Linear(8, width); });
      },
      "LS-WORKER-ORDER",
      {"'model.weight', Float [4, 8]", "on workers 0 and 2", "'model.weight', Float [5, 8]", "on worker 1",
       "2 variables differ"});
  expect_refused(
      [](Strategy& strategy) {
        strategy.make_module([&] { return torch::nn::Linear(LinearOptions(8, 4).bias(!is_last(strategy))); });
      },
      "LS-WORKER-ORDER", {"'model.bias', Float [4]", "no further variable", "on workers 0 to 1", "on worker 2"});
  expect_refused(
      [](Strategy& strategy) {
        strategy.make_module([&] {
          torch::nn::Linear layer(2, 2);
          layer->to(is_last(strategy) ? torch::kDouble : torch::kFloat);
          return layer;
        });
      },
      "LS-WORKER-ORDER", {"'model.weight', Float [2, 2]", "'model.weight', Double [2, 2]"});
}

TEST(WorkersDiffer, InOneElementOfAValue) {
  // Any of them, whatever the size: of a scalar, within the first parts, and the last one of many.
  for (const int64_t size : {1, 3, 64, 65, 5000}) {
    for (const int64_t at : {int64_t{0}, size / 2, size - 1}) {
      testing::expect_error_on_all<DivergenceError>(
          {3, 3, 1},
          [&](Strategy& strategy) {
            const torch::Tensor value = torch::zeros({size, 2});
            if (strategy.worker_index() == 1) value[at][1] = 0.25;
            strategy.make_variable(value, {.name = "v"});
          },
          "LS-DIVERGED", {"'v'", "0.25 at [" + std::to_string(at) + ", 1] on worker 1", "on workers 0 and 2"});
    }
  }
}

/// A step with an optimizer that `change` may make unlike on the last worker.
WorkerProgram stepping(std::function<Optimizer(Strategy&, const Variable&, const Variable&)> make) {
  return [make = std::move(make)](Strategy& strategy) {
    const Variable u = strategy.make_variable(torch::ones({2}), {.name = "u"});
    const Variable v = strategy.make_variable(torch::ones({2}), {.name = "v"});
    const Optimizer optimizer = make(strategy, u, v);
    strategy.run([&](ReplicaContext& ctx) {
      (u.value(ctx) + v.value(ctx) * 2).sum().backward();
      optimizer.step(ctx);
    });
  };
}

TEST(WorkersDiffer, InTheVariablesOfAnOptimizer) {
  using torch::optim::SGDOptions;
  expect_step_refused(stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
                        return strategy.make_optimizer(std::vector<Variable>{is_last(strategy) ? v : u},
                                                       SGDOptions(1.0));
                      }),
                      "LS-WORKER-ORDER", {"'u'", "'v'", "worker 1"});
  expect_step_refused(stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
                        return strategy.make_optimizer(
                            is_last(strategy) ? std::vector<Variable>{u, v} : std::vector<Variable>{u},
                            SGDOptions(1.0));
                      }),
                      "LS-WORKER-ORDER", {"'u' and 0 more variables", "'u' and 1 more variables"});
}

TEST(WorkersDiffer, InTheOptionsOfAnOptimizer) {
  using torch::optim::SGDOptions;
  const auto with = [](const SGDOptions& usual, const SGDOptions& last) {
    return stepping([=](Strategy& strategy, const Variable& u, const Variable& v) {
      return strategy.make_optimizer({u, v}, is_last(strategy) ? last : usual);
    });
  };
  expect_step_refused(with(SGDOptions(1.0), SGDOptions(0.5)), "LS-WORKER-ORDER",
                      {"learning rate 1", "learning rate 0.5", "worker 1"});
  expect_step_refused(with(SGDOptions(1.0).momentum(0.9), SGDOptions(1.0).momentum(0.8)), "LS-WORKER-ORDER",
                      {"they differ first in 'momentum = 0.9' and 'momentum = 0.8'", "worker 1"});
  using torch::optim::AdamOptions;
  expect_step_refused(stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
                        return strategy.make_optimizer({u, v}, AdamOptions(0.1).amsgrad(is_last(strategy)));
                      }),
                      "LS-WORKER-ORDER", {"worker 0", "worker 1", "amsgrad = false", "amsgrad = true"});
  expect_step_refused(stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
                        const double beta = is_last(strategy) ? 0.75 : 0.5;
                        return strategy.make_optimizer({u, v}, AdamOptions(0.1).betas({0.25, beta}));
                      }),
                      "LS-WORKER-ORDER", {"betas[1] = 0.5", "betas[1] = 0.75"});
}

TEST(WorkersDiffer, InAnOptionThatTheFirstStepsDoNotShow) {
  using torch::optim::AdagradOptions;
  using torch::optim::AdamWOptions;
  expect_step_refused(stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
                        return strategy.make_optimizer(
                            {u, v}, AdagradOptions(0.1).initial_accumulator_value(is_last(strategy) ? 0.5 : 0));
                      }),
                      "LS-WORKER-ORDER", {"initial_accumulator_value = 0.5", "initial_accumulator_value = 0"});
  // A warm-up begins at a rate of 0, at which nothing decays.
  expect_step_refused(
      stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
        return strategy.make_optimizer({u, v}, AdamWOptions(0).weight_decay(is_last(strategy) ? 0.5 : 0.25));
      }),
      "LS-WORKER-ORDER", {"weight_decay = 0.5", "weight_decay = 0.25"});
}

TEST(WorkersDiffer, InALearningRateThatWasSet) {
  expect_step_refused(stepping([](Strategy& strategy, const Variable& u, const Variable& v) {
                        const Optimizer optimizer = strategy.make_optimizer({u, v}, torch::optim::SGDOptions(1.0));
                        optimizer.set_learning_rate(is_last(strategy) ? 0.25 : 0.125);
                        return optimizer;
                      }),
                      "LS-WORKER-ORDER", {"learning rate 0.25", "learning rate 0.125"});
}

TEST(WorkersDiffer, InAFrozenParameter) {
  expect_step_refused(
      [](Strategy& strategy) {
        const Variable u = strategy.make_variable(torch::ones({2}), {.name = "u"});
        const Variable v = strategy.make_variable(torch::ones({2}), {.name = "v"});
        const Optimizer optimizer = strategy.make_optimizer({u, v}, torch::optim::SGDOptions(1.0));
        strategy.run([&](ReplicaContext& ctx) {
          if (is_last(strategy)) v.value(ctx).requires_grad_(false);
          (u.value(ctx) + v.value(ctx)).sum().backward();
          optimizer.step(ctx);
        });
      },
      "LS-FROZEN-UNLIKE", {"variable 'v'", "worker 0", "worker 1"});
}

}  // namespace
}  // namespace lockstep
