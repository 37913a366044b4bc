// A run is applied whole or not at all, whatever its steps catch, and errors say which call they are of.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <stdexcept>

#include "lockstep/strategy/setup.h"
#include "lockstep/variable/variable_state.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;

/// Runs `fn`, which must throw a ReplicaError, and gives the code of its first failure; "none" for an error without
/// one.
template <class Fn>
std::string code_from(const Fn& fn) {
  try {
    fn();
  } catch (const ReplicaError& error) {
    try {
      std::rethrow_if_nested(error);
    } catch (const Error& first) {
      return first.code();
    } catch (const std::exception&) {
      return "none";
    }
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

class WholeRun : public ::testing::TestWithParam<int> {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(GetParam()), .replicas = 4, .verify_every = 2}};
  Variable count_ = strategy_.make_variable(
      torch::zeros({2}),
      {.name = "count", .synchronization = VariableSynchronization::kOnRead, .aggregation = VariableAggregation::kSum});
};

TEST_P(WholeRun, AMismatchThatEveryStepCatchesFailsIt) {
  const auto run = [&] {
    return strategy_.run([&](ReplicaContext& ctx) {
      count_.assign_add(ctx, torch::ones({2}));
      try {
        ctx.all_reduce(Reduction::kSum, torch::ones({1 + ctx.replica_id() % 2}));
      } catch (const std::exception&) {
      }
      return torch::ones({1});
    });
  };
  EXPECT_EQ(code_from(run), "LS-MEETING-ORDER");
  EXPECT_EQ(strategy_.step(), 0);
  EXPECT_TRUE(torch::equal(count_.read(), torch::zeros({2})));
}

TEST_P(WholeRun, AStopThatEveryOtherStepCatchesFailsItByTheFirstError) {
  const auto run = [&] {
    strategy_.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() == 2) throw std::runtime_error("first");
      try {
        ctx.all_reduce(Reduction::kSum, torch::ones({1}));
      } catch (...) {
      }
    });
  };
  try {
    run();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ReplicaError& error) {
    ASSERT_EQ(error.failures().size(), 1u);
    EXPECT_EQ(error.replica(), 2);
    EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
  }
  EXPECT_EQ(strategy_.step(), 0);
}

TEST_P(WholeRun, AnErrorOfAMergeFunctionThatEveryStepCatchesFailsIt) {
  EXPECT_EQ(code_from([&] {
              strategy_.run([&](ReplicaContext& ctx) {
                try {
                  ctx.merge_call([](Strategy&) { throw std::out_of_range("in the merge"); });
                } catch (const std::out_of_range&) {
                }
              });
            }),
            "none");
  EXPECT_EQ(strategy_.step(), 0);
}

TEST_P(WholeRun, WhatItsVerificationFindsIsItsErrorAndTheStepIsNotCounted) {
  const Variable weight = strategy_.make_variable(torch::ones({4}), {.name = "weight"});
  strategy_.run([](ReplicaContext&) {});
  const Tensor memory = weight.state().copies().front();
  const auto run = [&] {
    strategy_.run([&](ReplicaContext& ctx) {
      count_.assign_add(ctx, torch::ones({2}));
      if (ctx.replica_id() == 0) *static_cast<float*>(memory.data_ptr()) = 5;  // behind the library's back
    });
  };
  testing::expect_step_error<DivergenceError>(run, "LS-FOREIGN-WRITE", {"variable 'weight'", "step 1"});
  EXPECT_EQ(strategy_.step(), 1);
  EXPECT_TRUE(torch::equal(count_.read(), torch::zeros({2})));
}

TEST_P(WholeRun, AnEvaluationsErrorsNameIt) {
  strategy_.run([](ReplicaContext&) {});
  const PerReplica<int> wrong(std::vector<int>(9));
  testing::expect_error<UsageError>([&] { strategy_.evaluate(wrong, [](ReplicaContext&, int) {}); },
                                    "LS-PER-REPLICA-SIZE", {"evaluate()", "9 values"});
  testing::expect_error<ReplicaError>(
      [&] { strategy_.evaluate([](ReplicaContext&) { throw std::runtime_error("mine"); }); }, "LS-REPLICA",
      {"evaluation after 1 step", "mine"});
}

INSTANTIATE_TEST_SUITE_P(Lanes, WholeRun, ::testing::Values(1, 2, 3));

struct ApartSynchronization : Synchronization {
  std::string describe() const override { return "after each step"; }
  bool averages_after(int64_t) const override { return true; }
  bool trains_locally(const NewVariable& variable) const override { return variable.parameter; }
};

/// Adds in tree order, and fails for tensors of `refused` elements once it is told to.
struct FailingReducer : Reducer {
  std::string describe() const override { return "as long as it wants to"; }
  Tensor reduce(Reduction reduction, std::span<const Tensor> values) const override {
    if (values.front().numel() == refused) throw std::runtime_error("not this one");
    return TreeReducer().reduce(reduction, values);
  }
  int64_t refused = -1;
};

class Custom final : public Strategy {
 public:
  explicit Custom(StrategySetup setup) : Strategy(std::move(setup)) {}
};

TEST(WholeRunOfParametersTrainedLocally, AnAverageThatFailsIsItsErrorAndNothingIsAveraged) {
  const auto reducer = std::make_shared<FailingReducer>();
  Custom strategy({.name = "Apart",
                   .topology = std::make_shared<HostTopology>(lanes(2), 3),
                   .reducer = reducer,
                   .synchronization = std::make_shared<ApartSynchronization>()});
  const auto model = strategy.make_module([] { return torch::nn::Linear(3, 2); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
  reducer->refused = 2;  // the bias, which comes after the weight
  const auto run = [&] {
    strategy.run([&](ReplicaContext& ctx) {
      model(ctx)
          ->forward(torch::full({1, 3}, 1.0f + static_cast<float>(ctx.replica_id().value())))
          .square()
          .sum()
          .backward();
      optimizer.step(ctx);
    });
  };
  EXPECT_THROW(run(), ReplicaError);
  EXPECT_EQ(strategy.step(), 0);
  const auto weights = model.variables().front().components();
  EXPECT_FALSE(torch::equal(weights[0], weights[2])) << "averaged beside a bias that could not be";
}

}  // namespace
}  // namespace lockstep
