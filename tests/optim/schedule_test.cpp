// Schedules by numbers, and optimizers that follow them.
#include "lockstep/optim/rules/schedule.h"

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/optim/rate_adder.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::expect_step_error;
using testing::lanes;
using testing::power_of_10;
using testing::RateAdder;
using torch::Tensor;
namespace optim = torch::optim;

std::vector<double> rates(const Schedule& schedule, int64_t steps) {
  std::vector<double> all;
  for (int64_t k = 0; k < steps; ++k) all.push_back(schedule(k));
  return all;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  // The same formula in another order of operations, and numbers of 12 digits.
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-11) << "step " << i;
}

TEST(Schedules, ThatGoByFactorsHaveTheNumbersOfTorch) {
  expect_near(rates(schedules::constant(0.5), 3), {0.5, 0.5, 0.5});
  expect_near(rates(schedules::step(1, 2, 0.5), 6), {1, 1, 0.5, 0.5, 0.25, 0.25});
  expect_near(rates(schedules::multi_step(1, {1, 4}, 0.1), 6), {1, 0.1, 0.1, 0.1, 0.01, 0.01});
  expect_near(rates(schedules::exponential(1, 0.5), 4), {1, 0.5, 0.25, 0.125});
}

TEST(Schedules, WithAnEndReachItAndKeepIt) {
  expect_near(rates(schedules::polynomial(1, 4), 7), {1, 0.75, 0.5, 0.25, 0, 0, 0});
  expect_near(rates(schedules::polynomial(1, 2, {.end = 0.5, .power = 2}), 4), {1, 0.625, 0.5, 0.5});
  const double half = (1 + std::cos(M_PI / 4)) / 2;
  expect_near(rates(schedules::cosine(1, 4), 6), {1, half, 0.5, 1 - half, 0, 0});
  expect_near(rates(schedules::cosine(1, 4, {.end = 0.5}), 6), {1, 0.5 + half / 2, 0.75, 1 - half / 2, 0.5, 0.5});
}

TEST(Schedules, OfACosineCountTheirWarmUpAndRestart) {
  expect_near(rates(schedules::cosine(1, 4, {.warm_up = 2}), 6), {0.5, 1, 1, 0.5, 0, 0});
  expect_near(rates(schedules::cosine(1, 4, {.restart_every = 2}), 6), {1, 0.5, 1, 0.5, 0, 0});
  expect_near(rates(schedules::cosine(1, 5, {.restart_every = 2}), 7), {1, 0.5, 1, 0.5, 1, 0.5, 0.5});
  expect_near(rates(schedules::cosine(1, 2, {.warm_up = 2}), 4), {0.5, 1, 1, 1});
}

TEST(Schedules, OfOneCycleHaveTheNumbersOfTorch) {
  // torch.optim.lr_scheduler.OneCycleLR(max_lr=1, total_steps=10, pct_start=0.3, final_div_factor=400)
  expect_near(rates(schedules::one_cycle(1, 10), 12),
              {0.04, 0.52, 1, 0.950489385508, 0.811763726439, 0.611299340931, 0.388800659069, 0.188336273561,
               0.049610614492, 0.0001, 0.0001, 0.0001});
  expect_near(rates(schedules::one_cycle(1, 3, {.start = 0.5, .end = 0.25, .rise = 0}), 4), {1, 0.625, 0.25, 0.25});
}

TEST(Schedules, OfASequenceCountEachPartFrom0) {
  const Schedule all = schedules::sequence({{schedules::step(1, 1, 0.5), 2}, {schedules::polynomial(4, 2), 2}});
  expect_near(rates(all, 6), {1, 0.5, 4, 2, 0, 0});
}

TEST(Schedules, RefuseWhatIsNoRateAndNoCount) {
  expect_error<UsageError>([] { schedules::constant(-1); }, "LS-OPTION", {"constant", "-1"});
  expect_error<UsageError>([] { schedules::step(1, 0, 0.5); }, "LS-OPTION", {"every"});
  expect_error<UsageError>([] { schedules::multi_step(1, {3, 3}, 0.5); }, "LS-OPTION", {"3"});
  expect_error<UsageError>([] { schedules::exponential(1, NAN); }, "LS-OPTION", {"factor"});
  expect_error<UsageError>([] { schedules::cosine(1, 4, {.warm_up = 5}); }, "LS-OPTION", {".warm_up", "5"});
  expect_error<UsageError>([] { schedules::one_cycle(1, 4, {.rise = 2}); }, "LS-OPTION", {".rise", "2"});
  expect_error<UsageError>([] { schedules::sequence({}); }, "LS-OPTION", {"parts"});
  const Schedule one = schedules::constant(1);
  expect_error<UsageError>(
      [&] {
        schedules::sequence({{one, 1}, {Schedule(), 2}});
      },
      "LS-OPTION", {"parts[1].schedule"});
  expect_error<UsageError>([&] { schedules::sequence({{one, 1}, {one, 0}}); }, "LS-OPTION", {"parts[1].steps", "0"});
}

class ScheduleOf : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
};

TEST_P(ScheduleOf, GivesTheRateOfEachStepFrom0) {
  RateAdder one(*strategy_);
  one.optimizer.set_schedule(power_of_10);
  EXPECT_EQ(one.optimizer.learning_rate(), 1);
  for (int k = 0; k < 4; ++k) one.step();
  EXPECT_EQ(one.value(), 1111);
  EXPECT_EQ(one.optimizer.learning_rate(), 10000) << "of the next step";
}

TEST_P(ScheduleOf, HoldsUntilARateIsSetAndTheOtherWayRound) {
  RateAdder one(*strategy_);
  one.optimizer.set_schedule(power_of_10);
  one.step();
  one.optimizer.set_learning_rate(0.5);
  one.step();
  one.step();
  EXPECT_EQ(one.value(), 2);
  one.optimizer.set_schedule(power_of_10);
  one.step();
  EXPECT_EQ(one.value(), 1002) << "step 3, however the rates of the steps before were set";
}

TEST_P(ScheduleOf, DoesNotCountStepsThatWereSkippedOrFailed) {
  RateAdder one(*strategy_);
  one.optimizer.set_schedule(power_of_10);
  one.step();
  one.step({.skip_non_finite = true}, std::numeric_limits<double>::infinity());
  expect_step_error<NonFiniteError>([&] { one.step({.check_finite = true}, std::numeric_limits<double>::quiet_NaN()); },
                                    "LS-NOT-FINITE");
  one.step();
  EXPECT_EQ(one.value(), 11);
}

INSTANTIATE_TEST_SUITE_P(EveryStrategy, ScheduleOf, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(ScheduleOfAGroup, LeavesTheOthersAlone) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Variable a = strategy.make_variable(torch::ones({1}), {.name = "a"});
  const Variable b = strategy.make_variable(torch::ones({1}), {.name = "b"});
  using Group = ParameterGroup<optim::SGDOptions>;
  const Optimizer optimizer =
      strategy.make_optimizer(std::vector<Group>{{{a}, optim::SGDOptions(1.0)}, {{b}, optim::SGDOptions(0.25)}});
  optimizer.set_schedule(schedules::constant(0.125), 1);
  EXPECT_EQ(optimizer.learning_rate(0), 1);
  EXPECT_EQ(optimizer.learning_rate(1), 0.125);
  expect_error<UsageError>([&] { optimizer.set_schedule(schedules::constant(1), 2); }, "LS-OPTION", {"2"});
  expect_error<UsageError>([&] { optimizer.set_schedule(Schedule()); }, "LS-OPTION", {"optimizer"});
}

TEST(ScheduleOfAnOptimizer, CountsItsStepsAndNotThoseOfOneVariable) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Variable a = strategy.make_variable(torch::zeros({1}, torch::kDouble), {.name = "a"});
  const Variable b = strategy.make_variable(torch::zeros({1}, torch::kDouble), {.name = "b"});
  const auto options = optim::SGDOptions(1);
  const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{a, b}, options);
  optimizer.set_schedule(power_of_10);
  const auto step = [&](const Variable& of) {
    strategy.run([&](ReplicaContext& ctx) {
      (-of.value(ctx).sum() / static_cast<double>(ctx.num_replicas())).backward();
      optimizer.step(ctx);
    });
  };
  step(a);
  step(b);
  step(a);
  EXPECT_EQ(a.read().item<double>(), 101);
  EXPECT_EQ(b.read().item<double>(), 10);

  const std::map<std::string, Tensor> state = optimizer.state();
  EXPECT_EQ(state.at("extra_steps").item<int64_t>(), 1);
  MirroredStrategy other({.devices = lanes(1), .replicas = 2});
  const Variable c = other.make_variable(torch::zeros({1}, torch::kDouble), {.name = "a"});
  const Variable d = other.make_variable(torch::zeros({1}, torch::kDouble), {.name = "b"});
  const Optimizer resumed = other.make_optimizer(std::vector<Variable>{c, d}, options);
  resumed.set_schedule(power_of_10);
  resumed.load(state);
  EXPECT_EQ(resumed.learning_rate(), 1000) << "of step 3";
}

TEST(ScheduleOfAnOptimizer, ThatGivesNoRateFailsTheStepThatWouldHaveIt) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  RateAdder one(strategy);
  expect_error<UsageError>([&] { one.optimizer.set_schedule([](int64_t) { return -1.0; }); }, "LS-OPTION", {"step 0"});
  EXPECT_EQ(one.optimizer.learning_rate(), 0.25) << "nothing was set";
  one.optimizer.set_schedule([](int64_t k) { return k < 2 ? 1.0 : std::nan(""); });
  one.step();
  one.step();
  expect_step_error<UsageError>([&] { one.step(); }, "LS-OPTION", {"step 2", "'optimizer'"});
  EXPECT_EQ(one.value(), 2);
  one.optimizer.set_learning_rate(3);
  one.step();
  EXPECT_EQ(one.value(), 5);
}

TEST(ScheduleOfAnOptimizer, ThatWasSetInARunThatFailsIsForgotten) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  RateAdder one(strategy);
  EXPECT_THROW(strategy.run([&](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy&) { one.optimizer.set_schedule(power_of_10); });
    throw std::runtime_error("after it");
  }),
               ReplicaError);
  one.step();
  EXPECT_EQ(one.value(), 0.25);
}

TEST(ScheduleOnWorkers, GivesTheBitsOfOneProcessAndIsCompared) {
  const auto train = [](Strategy& strategy) {
    RateAdder one(strategy);
    one.optimizer.set_schedule(schedules::cosine(0.1, 7, {.end = 0.001, .warm_up = 3}));
    for (int k = 0; k < 9; ++k) one.step();
    return one.weight.read();
  };
  MirroredStrategy alone({.devices = lanes(1), .replicas = 4, .seed = 3});
  const Tensor expected = train(alone);
  for (const testing::WorkersCase& one : {testing::WorkersCase{2, 4, 1}, testing::WorkersCase{4, 4, 1}}) {
    for (const Tensor& found : testing::run_workers(one, train)) EXPECT_TRUE(torch::equal(found, expected)) << one;
  }
  testing::expect_step_error_on_all<UsageError>(
      {2, 2, 1},
      [](Strategy& strategy) {
        RateAdder one(strategy);
        const bool is_first = strategy.worker_index() == 0;
        one.optimizer.set_schedule([is_first](int64_t k) { return is_first || k < 1 ? 0.5 : 0.25; });
        one.step();
        one.step();
      },
      "LS-WORKER-ORDER", {"learning rate 0.5", "learning rate 0.25"});
}

TEST(LearningRateBridges, LetTheSchedulersOfTorchSetEachGroupsRate) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Variable a = strategy.make_variable(torch::ones({3}), {.name = "a"});
  const Variable b = strategy.make_variable(torch::ones({3}), {.name = "b"});
  using Group = ParameterGroup<optim::AdamOptions>;
  const Optimizer optimizer =
      strategy.make_optimizer(std::vector<Group>{{{a}, optim::AdamOptions(1.0)}, {{b}, optim::AdamOptions(0.25)}});
  LearningRateBridge bridge(optimizer);
  torch::optim::Optimizer& as_torch = bridge;
  EXPECT_EQ(as_torch.param_groups().size(), 2);
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<Tensor>{torch::ones({3})}, std::make_unique<optim::AdamOptions>(1.0));
  groups.emplace_back(std::vector<Tensor>{torch::ones({3})}, std::make_unique<optim::AdamOptions>(0.25));
  optim::Adam stock(groups, optim::AdamOptions());
  optim::StepLR scheduler(bridge, 2, 0.5);
  optim::StepLR of_stock(stock, 2, 0.5);
  for (int epoch = 0; epoch < 7; ++epoch) {
    for (std::size_t g = 0; g < 2; ++g)
      EXPECT_EQ(optimizer.learning_rate(g), stock.param_groups()[g].options().get_lr()) << epoch << ", group " << g;
    scheduler.step();
    of_stock.step();
  }
  EXPECT_EQ(optimizer.learning_rate(1), 0.25 / 8);
  expect_error<UsageError>([&] { as_torch.step(); }, "LS-OPTION", {"LearningRateBridge"});
}

TEST(ScheduleOfAnOptimizer, ThatThrowsOnOneWorkerIsToldToAllInItsWords) {
  testing::run_workers({2, 4, 1}, [](Strategy& strategy) {
    RateAdder adder(strategy);
    const bool throws = strategy.worker_index() == 1;
    adder.optimizer.set_schedule([throws](int64_t k) {
      if (throws && k == 1) throw std::domain_error("no rate for this step");
      return 0.5;
    });
    adder.step();
    try {
      adder.step();
      ADD_FAILURE() << "the step went on";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("no rate for this step"), std::string::npos) << error.what();
    }
    EXPECT_EQ(adder.value(), 0.5);
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
