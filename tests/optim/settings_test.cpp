// Options of an optimizer that are set between steps: learning rate, weight decay and momentum, by group.
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/strategies.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::expect_step_error;
using testing::lanes;
using torch::Tensor;
namespace optim = torch::optim;

/// What is set before the steps of a number: a weight decay, and a momentum where it is not below 0.
struct Setting {
  int step;
  double weight_decay;
  double momentum = -1;
};

constexpr int kSteps = 12;

Tensor start_of_weight() { return torch::randn({40}, at::make_generator<at::CPUGeneratorImpl>(uint64_t{1})); }
Tensor gradient_at(int step) {
  return torch::randn({40}, at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 + step)));
}

void set_in_stock(auto& options, const Setting& setting) {
  options.weight_decay(setting.weight_decay);
  if constexpr (requires { options.momentum(); }) {
    if (setting.momentum >= 0) options.momentum(setting.momentum);
  }
}

template <class Stock, class Options>
Tensor by_torch(const Options& options, const std::vector<Setting>& settings) {
  std::vector<Tensor> weights{start_of_weight().requires_grad_()};
  Stock stock(weights, options);
  for (int step = 0; step < kSteps; ++step) {
    for (const Setting& one : settings) {
      if (one.step == step) set_in_stock(static_cast<Options&>(stock.param_groups()[0].options()), one);
    }
    weights[0].mutable_grad() = gradient_at(step);
    stock.step();
  }
  return weights[0].detach();
}

template <class Options>
Tensor by_replicas(Strategy& strategy, const Options& options, const std::vector<Setting>& settings) {
  const Variable weight = strategy.make_variable(start_of_weight(), {.name = "w"});
  const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{weight}, options);
  for (int step = 0; step < kSteps; ++step) {
    for (const Setting& one : settings) {
      if (one.step != step) continue;
      optimizer.set_weight_decay(one.weight_decay);
      if (one.momentum >= 0) optimizer.set_momentum(one.momentum, 0);
    }
    strategy.run([&](ReplicaContext& ctx) {
      weight.value(ctx).mutable_grad() = gradient_at(step) / static_cast<double>(ctx.num_replicas());
      optimizer.step(ctx, {.loss_scaled_by_hand = true});
    });
  }
  return weight.read();
}

template <class Stock, class Options>
void expect_like_torch(const Options& options, const std::vector<Setting>& settings) {
  const Tensor expected = by_torch<Stock>(options, settings);
  EXPECT_FALSE(torch::allclose(expected, by_torch<Stock>(options, {}), 1e-4, 1e-4)) << "the settings change something";
  for (const int64_t replicas : {1, 4}) {
    for (const int lane_count : {1, 2}) {
      if (lane_count > replicas) continue;
      MirroredStrategy strategy({.devices = lanes(lane_count), .replicas = replicas});
      EXPECT_TRUE(torch::allclose(by_replicas(strategy, options, settings), expected, 1e-5, 1e-6))
          << replicas << " replicas, " << lane_count << " lanes";
    }
  }
}

TEST(Settings, OfEachRuleChangeItAsInTorch) {
  const std::vector<Setting> both{{3, 0.1, 0.5}, {5, 0.05, 0}, {8, 0, 0.8}, {10, 0.2}};
  expect_like_torch<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9), both);
  expect_like_torch<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true), both);
  expect_like_torch<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).dampening(0.3), {{2, 0.1, 0.5}, {6, 0.2, 0.7}});
  expect_like_torch<optim::SGD>(optim::SGDOptions(0.1).weight_decay(0.3), {{4, 0}, {9, 0.1}});
  expect_like_torch<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.9), both);
  expect_like_torch<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.9).centered(true), both);
  const std::vector<Setting> decay{{2, 0.5}, {7, 0}, {9, 0.3}};
  expect_like_torch<optim::Adam>(optim::AdamOptions(0.01), decay);
  expect_like_torch<optim::AdamW>(optim::AdamWOptions(0.05), decay);
  expect_like_torch<optim::Adagrad>(optim::AdagradOptions(0.1), decay);
}

class SettingsOf : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  using Group = ParameterGroup<optim::SGDOptions>;
  Optimizer two_groups() const {
    return strategy_->make_optimizer(
        std::vector<Group>{{{a_}, optim::SGDOptions(0.5).momentum(0.9)}, {{b_}, optim::SGDOptions(0.25)}});
  }
  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
  const Variable a_ = strategy_->make_variable(torch::ones({3}), {.name = "a"});
  const Variable b_ = strategy_->make_variable(torch::ones({3}), {.name = "b"});
};

TEST_P(SettingsOf, AreThoseOfOneGroupOrOfAll) {
  const Optimizer optimizer = two_groups();
  EXPECT_EQ(optimizer.num_groups(), 2);
  EXPECT_EQ(strategy_->make_optimizer(std::vector<Variable>{b_}, optim::AdamOptions(1)).num_groups(), 1);
  EXPECT_EQ(optimizer.momentum(), 0.9);
  EXPECT_EQ(optimizer.momentum(1), 0);
  optimizer.set_weight_decay(0.125, 1);
  EXPECT_EQ(optimizer.weight_decay(), 0);
  EXPECT_EQ(optimizer.weight_decay(1), 0.125);
  optimizer.set_weight_decay(0.5);
  EXPECT_EQ(optimizer.weight_decay(), 0.5);
  EXPECT_EQ(optimizer.weight_decay(1), 0.5);
  optimizer.set_momentum(0.25, 0);
  EXPECT_EQ(optimizer.momentum(), 0.25);
  // A schedule of any optimizer.
  for (int64_t g = 0; g < optimizer.num_groups(); ++g) {
    optimizer.set_learning_rate(optimizer.learning_rate(g) * 0.5, g);
  }
  EXPECT_EQ(optimizer.learning_rate(0), 0.25);
  EXPECT_EQ(optimizer.learning_rate(1), 0.125);
}

TEST_P(SettingsOf, ThatTheRuleLacksAreRefusedAndNothingIsSet) {
  const char* const code = "LS-OPTION";
  const Optimizer optimizer = two_groups();
  expect_error<UsageError>([&] { optimizer.set_momentum(0.5); }, code, {"SGD", "made without"});
  EXPECT_EQ(optimizer.momentum(), 0.9) << "not of the other group either";
  const Optimizer adam = strategy_->make_optimizer(std::vector<Variable>{a_}, optim::AdamOptions(0.1));
  expect_error<UsageError>([&] { adam.set_momentum(0.5); }, code, {"Adam", "learning rate", "weight decay"});
  EXPECT_EQ(adam.momentum(), 0);
  for (const double wrong : {-0.1, std::nan(""), std::numeric_limits<double>::infinity()}) {
    expect_error<UsageError>([&] { optimizer.set_momentum(wrong, 0); }, code, {"momentum"});
    expect_error<UsageError>([&] { adam.set_weight_decay(wrong); }, code, {"weight_decay"});
  }
  expect_error<UsageError>([&] { optimizer.set_momentum(0.5, 2); }, code, {"group 2"});
  expect_error<UsageError>([&] { optimizer.set_weight_decay(0.5, -1); }, code, {"group -1"});
  expect_error<UsageError>([&] { optimizer.weight_decay(7); }, code, {"group 7"});
  expect_error<UsageError>([] { Optimizer().num_groups(); }, "LS-EMPTY-HANDLE");
  const Optimizer damped =
      strategy_->make_optimizer(std::vector<Variable>{a_}, optim::SGDOptions(0.1).momentum(0.5).dampening(0.5));
  expect_error<UsageError>([&] { damped.set_momentum(0); }, code, {"dampening"});
  expect_step_error<UsageError>([&] { strategy_->run([&](ReplicaContext&) { adam.set_weight_decay(0.1); }); },
                                "LS-INSIDE-STEP", {"Optimizer::set_weight_decay"});
}

TEST_P(SettingsOf, AreStateWhereTheyAreNotWhatTheOptionsSay) {
  const Optimizer optimizer = two_groups();
  const auto fresh = optimizer.state();
  EXPECT_FALSE(fresh.contains("momentum/0"));
  optimizer.set_momentum(0.5, 0);
  optimizer.set_weight_decay(0.125, 1);
  const auto changed = optimizer.state();
  EXPECT_EQ(changed.at("momentum/0").item<double>(), 0.5);
  EXPECT_EQ(changed.at("weight_decay/1").item<double>(), 0.125);
  EXPECT_EQ(changed.size(), fresh.size() + 2);
  optimizer.load(fresh);
  EXPECT_EQ(optimizer.momentum(), 0.9);
  EXPECT_EQ(optimizer.weight_decay(1), 0);
  optimizer.load(changed);
  EXPECT_EQ(optimizer.momentum(), 0.5);
  EXPECT_EQ(optimizer.weight_decay(1), 0.125);
  for (const auto& [name, value] : std::vector<std::pair<std::string, double>>{
           {"momentum/1", 0.5}, {"momentum/0", -1}, {"weight_decay/0", std::nan("")}, {"weight_decay/2", 0.5}}) {
    auto wrong = changed;
    wrong[name] = torch::tensor(value, torch::kDouble);
    expect_error<UsageError>([&] { optimizer.load(wrong); }, "LS-STATE-MISFIT", {name});
  }
}

TEST_P(SettingsOf, ThatAMergeFunctionSetsAreUndoneByAFailedRun) {
  const Optimizer optimizer = two_groups();
  const auto change = [&](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy&) {
      optimizer.set_momentum(0.5, 0);
      optimizer.set_weight_decay(0.25);
    });
  };
  EXPECT_THROW(strategy_->run([&](ReplicaContext& ctx) {
    change(ctx);
    throw std::runtime_error("later");
  }),
               ReplicaError);
  EXPECT_EQ(optimizer.momentum(), 0.9);
  EXPECT_EQ(optimizer.weight_decay(1), 0);
  strategy_->run(change);
  EXPECT_EQ(optimizer.momentum(), 0.5);
  EXPECT_EQ(optimizer.weight_decay(1), 0.25);
}

TEST_P(SettingsOf, AreInTheListOfStateAndAreWrittenThere) {
  const Optimizer optimizer = two_groups();
  optimizer.set_weight_decay(0.25, 0);
  std::map<std::string, StateItem> items;
  for (StateItem& item : strategy_->state_items()) items[item.name] = std::move(item);
  const std::string name = optimizer.name();
  EXPECT_FALSE(items.contains(name + "/momentum/1"));
  StateItem& decay = items.at(name + "/weight_decay/0");
  EXPECT_EQ(decay.kind, StateItem::Kind::kOption);
  EXPECT_EQ(decay.read().front().item<double>(), 0.25);
  EXPECT_EQ(decay.made_with, 0.0);
  items.at(name + "/momentum/0").write({torch::tensor(0.75, torch::kDouble)});
  EXPECT_EQ(optimizer.momentum(), 0.75);
  expect_error<UsageError>([&] { decay.write({torch::tensor(-1.0, torch::kDouble)}); }, "LS-OPTION");
}

INSTANTIATE_TEST_SUITE_P(EveryStrategy, SettingsOf, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& each) { return std::string(each.param.name); });

bool is_last_worker(const Strategy& strategy) { return strategy.worker_index() == strategy.num_workers() - 1; }

TEST(SettingsOnWorkers, GiveTheBitsOfOneProcess) {
  const std::vector<Setting> settings{{3, 0.1, 0.5}, {5, 0.05, 0}, {8, 0, 0.8}};
  const auto options = optim::SGDOptions(0.1).momentum(0.9);
  MirroredStrategy alone({.devices = lanes(1), .replicas = 4, .seed = 3});
  const Tensor expected = by_replicas(alone, options, settings);
  for (const testing::WorkersCase& one :
       {testing::WorkersCase{2, 4, 1}, testing::WorkersCase{3, 4, 1}, testing::WorkersCase{2, 4, 1, {}, {0, 1}}}) {
    for (const Tensor& found :
         testing::run_workers(one, [&](Strategy& strategy) { return by_replicas(strategy, options, settings); })) {
      EXPECT_TRUE(torch::equal(found, expected)) << one;
    }
  }
}

TEST(SettingsOnWorkers, AreSetOnAllOrOnNoneAndCompared) {
  testing::run_workers({2, 2, 1}, [](Strategy& strategy) {
    const Variable w = strategy.make_variable(torch::ones({3}), {.name = "w"});
    const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, optim::SGDOptions(0.1).momentum(0.9));
    EXPECT_THROW(optimizer.set_momentum(is_last_worker(strategy) ? -1 : 0.5), Error);
    EXPECT_EQ(optimizer.momentum(), 0.9);
    return 0;
  });
  testing::expect_step_error_on_all<UsageError>(
      {2, 2, 1},
      [](Strategy& strategy) {
        const Variable w = strategy.make_variable(torch::ones({3}), {.name = "w"});
        const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, optim::SGDOptions(0.1));
        optimizer.set_weight_decay(is_last_worker(strategy) ? 0.25 : 0.125);
        strategy.run([&](ReplicaContext& ctx) {
          w.value(ctx).sum().backward();
          optimizer.step(ctx);
        });
      },
      "LS-WORKER-ORDER", {"weight_decay = 0.25", "weight_decay = 0.125"});
}

class SettingsInCheckpoints : public testing::ScratchFolder {
 protected:
  struct Training {
    explicit Training(double momentum = 0.9)
        : w(strategy.make_variable(torch::ones({3}), {.name = "w"})),
          optimizer(strategy.make_optimizer(std::vector<Variable>{w}, optim::SGDOptions(0.1).momentum(momentum))) {}
    MirroredStrategy strategy{{.devices = lanes(1), .replicas = 2, .seed = 1}};
    Variable w;
    Optimizer optimizer;
  };
};

TEST_F(SettingsInCheckpoints, AreSavedWhereTheyWereSetAndElseThoseOfTheOptions) {
  const std::string fresh = (folder_ / "fresh").string();
  const std::string changed = (folder_ / "changed").string();
  Training one;
  Checkpoint(one.strategy).save(fresh);
  one.optimizer.set_momentum(0.5);
  one.optimizer.set_weight_decay(0.25);
  Checkpoint(one.strategy).save(changed);

  Training other;
  const RestoreInfo info = Checkpoint(other.strategy).restore(changed);
  EXPECT_TRUE(info.missing.empty() && info.unexpected.empty());
  EXPECT_EQ(other.optimizer.momentum(), 0.5);
  EXPECT_EQ(other.optimizer.weight_decay(), 0.25);
  EXPECT_TRUE(Checkpoint(other.strategy).restore(fresh).missing.empty()) << "nor in those of earlier versions";
  EXPECT_EQ(other.optimizer.momentum(), 0.9);
  EXPECT_EQ(other.optimizer.weight_decay(), 0);

  Training new_options(0.75);
  Checkpoint(new_options.strategy).restore(fresh);
  EXPECT_EQ(new_options.optimizer.momentum(), 0.75) << "as a program that changes its options expects";
}

TEST_F(SettingsInCheckpoints, OfAnOptimizerThatACheckpointDoesNotKnowStay) {
  const std::string without = (folder_ / "without").string();
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2, .seed = 1});
  const Variable w = strategy.make_variable(torch::ones({3}), {.name = "w"});
  Checkpoint(strategy).save(without);
  const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, optim::SGDOptions(0.1));
  optimizer.set_weight_decay(0.25);
  EXPECT_FALSE(Checkpoint(strategy).restore(without, {.allow_missing = true}).missing.empty());
  EXPECT_EQ(optimizer.weight_decay(), 0.25);
}

/// The rates of two groups, epoch by epoch, by LibTorch's StepLR(3, 0.5) and by the line of docs/porting.md.
TEST(Schedules, OfThePortingGuideChangeEachGroupInTheEpochOfLibTorch) {
  constexpr int64_t kEvery = 3;
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Variable a = strategy.make_variable(torch::ones({3}), {.name = "a"});
  const Variable b = strategy.make_variable(torch::ones({3}), {.name = "b"});
  using Group = ParameterGroup<optim::SGDOptions>;
  const Optimizer optimizer =
      strategy.make_optimizer(std::vector<Group>{{{a}, optim::SGDOptions(1.0)}, {{b}, optim::SGDOptions(0.25)}});

  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<Tensor>{torch::ones({3})}, std::make_unique<optim::SGDOptions>(1.0));
  groups.emplace_back(std::vector<Tensor>{torch::ones({3})}, std::make_unique<optim::SGDOptions>(0.25));
  optim::SGD stock(groups, optim::SGDOptions(1.0));
  optim::StepLR scheduler(stock, kEvery, 0.5);
  for (int64_t epoch = 0; epoch < 11; ++epoch) {
    for (int64_t g = 0; g < 2; ++g) {
      EXPECT_EQ(optimizer.learning_rate(g), stock.param_groups()[static_cast<std::size_t>(g)].options().get_lr())
          << "epoch " << epoch << ", group " << g;
    }
    scheduler.step();
    if (epoch > 0 && epoch % kEvery == 0) {
      for (int64_t g = 0; g < optimizer.num_groups(); ++g) {
        optimizer.set_learning_rate(optimizer.learning_rate(g) * 0.5, g);
      }
    }
  }
  EXPECT_EQ(optimizer.learning_rate(1), 0.25 / 8);
}

}  // namespace
}  // namespace lockstep
