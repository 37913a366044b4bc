// Slots of which each worker has its slices alone: the same bits, less memory.
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/variable/variable_state.h"
#include "tests/support/host_update.h"
#include "tests/support/resident.h"

namespace lockstep {
namespace {

using testing::kHugePages;
using testing::resident_kilobytes;
using testing::run_workers;
using testing::SlotsAre;
using testing::wave;
using testing::WavyNet;
using testing::WorkersCase;

/// The digest of a vector and a matrix with all slots after some steps of one rule, the norms of the gradients
/// included.
template <class Options>
std::vector<std::string> trained(Strategy& strategy, const Options& options) {
  const Variable matrix = strategy.make_variable(wave(90, 70), {.name = "matrix"});
  const Variable vector = strategy.make_variable(wave(1, 3000, 1).view({3000}).to(torch::kDouble), {.name = "vector"});
  const Optimizer optimizer = strategy.make_optimizer({matrix, vector}, options);
  std::vector<std::string> found;
  for (int step = 0; step < 4; ++step) {
    double norm = 0;
    strategy.run([&](ReplicaContext& ctx) {
      const double own = 1 + 0.1 * static_cast<double>(ctx.replica_id().value() + ctx.step());
      ((matrix.value(ctx) * own).sin().sum() + (vector.value(ctx) * own).cos().sum()).backward();
      StepOptions how;
      if (step % 2 == 1) how.clip_global_norm = 0.5;
      const StepInfo info = optimizer.step(ctx, how);
      if (ctx.replica_id() == testing::first_replica(strategy)) norm = info.global_norm;
    });
    optimizer.gather_slots();
    std::vector<std::pair<std::string, torch::Tensor>> all{{"matrix", matrix.read()}, {"vector", vector.read()}};
    for (const Variable& slot : optimizer.slots()) all.emplace_back(slot.name(), slot.read());
    found.push_back(sha256_of(all) + " " + std::to_string(norm));
  }
  return found;
}

TEST(SlicedSlots, GiveTheSameBitsWithEveryRule) {
  using namespace torch::optim;
  const std::vector<std::function<std::vector<std::string>(Strategy&)>> programs{
      [](Strategy& strategy) { return trained(strategy, SGDOptions(0.1)); },
      [](Strategy& strategy) { return trained(strategy, SGDOptions(0.1).momentum(0.9).nesterov(true)); },
      [](Strategy& strategy) { return trained(strategy, AdamOptions(0.01).amsgrad(true)); },
      [](Strategy& strategy) { return trained(strategy, AdamWOptions(0.01)); },
      [](Strategy& strategy) { return trained(strategy, RMSpropOptions(0.01).momentum(0.5).centered(true)); },
      [](Strategy& strategy) { return trained(strategy, AdagradOptions(0.01).initial_accumulator_value(0.25)); }};
  for (std::size_t rule = 0; rule < programs.size(); ++rule) {
    const auto expected = run_workers({1, 6}, programs[rule]).front();
    const SlotsAre sliced("sliced");
    for (const WorkersCase& one : {WorkersCase{1, 6, 2}, {2, 6, 1}, {2, 6, 3}, {3, 6, 2}, {4, 6, 1}, {6, 6, 1}}) {
      for (const auto& found : run_workers(one, programs[rule])) EXPECT_EQ(found, expected) << one << ", rule " << rule;
    }
  }
}

constexpr int64_t kElements = 16 << 20;
constexpr int64_t kKilobytes = kElements * 4 / 1024;

TEST(SlicedSlots, TakeAWorkersPartOfTheMemoryUntilTheyAreGathered) {
  const SlotsAre sliced("sliced");
  run_workers({4, 4}, [](Strategy& strategy) {
    const Variable vector = strategy.make_variable(torch::ones({kElements}), {.name = "vector"});
    const Optimizer optimizer = strategy.make_optimizer({vector}, torch::optim::AdamWOptions(0.1));
    const auto step = [&] {
      strategy.run([&](ReplicaContext& ctx) {
        vector.value(ctx).sum().backward();
        optimizer.step(ctx);
      });
    };
    const auto resident = [&](std::size_t slot) {
      return resident_kilobytes(optimizer.slots()[slot].state().copies().front());
    };
    EXPECT_LE(resident(0), kHugePages) << "before the first step";
    step();
    for (const std::size_t slot : {0, 1}) {
      EXPECT_GE(resident(slot), kKilobytes / 4);
      EXPECT_LE(resident(slot), kKilobytes / 4 + kHugePages);
    }
    optimizer.gather_slots();
    EXPECT_GE(resident(0), kKilobytes);
    step();
    EXPECT_LE(resident(0), kKilobytes / 4 + kHugePages) << "the next step gives it back";
    const torch::Tensor zeros = torch::zeros({kElements});
    (void)testing::error_from<ReplicaError>([&] {
      strategy.run([&](ReplicaContext& ctx) {
        ctx.merge_call([&](Strategy&) { optimizer.slots()[0].assign(zeros); });
        throw std::runtime_error("after the assignment");
      });
    });
    step();
    EXPECT_LE(resident(0), kKilobytes / 4 + kHugePages) << "a run that was rolled back gives it back too";
    return 0;
  });
}

TEST(SlicedSlots, OfAllSizesAreGathered) {
  const auto program = [](Strategy& strategy) {
    std::vector<Variable> variables;
    for (const int64_t elements : {7, 5 << 20, 0, 3000, 6 << 20, 1}) {
      variables.push_back(strategy.make_variable(torch::arange(elements).to(torch::kFloat).sin(),
                                                 {.name = "v" + std::to_string(variables.size())}));
    }
    const Optimizer optimizer = strategy.make_optimizer(variables, torch::optim::SGDOptions(0.1).momentum(0.9));
    strategy.run([&](ReplicaContext& ctx) {
      auto loss = torch::zeros({});
      for (const Variable& one : variables) loss = loss + one.value(ctx).pow(2).sum();
      loss.backward();
      optimizer.step(ctx);
    });
    optimizer.gather_slots();
    std::vector<std::pair<std::string, torch::Tensor>> named;
    for (const Variable& slot : optimizer.slots()) named.emplace_back(slot.name(), slot.read());
    return sha256_of(named);
  };
  const std::string expected = run_workers({1, 3}, program).front();
  const SlotsAre sliced("sliced");
  for (const std::string& found : run_workers({3, 3}, program)) EXPECT_EQ(found, expected);
}

TEST(SlicedSlots, AreShownWithTheBytesOfAStep) {
  const SlotsAre sliced("sliced");
  run_workers({2, 4}, [](Strategy& strategy) {
    const Variable matrix = strategy.make_variable(torch::ones({64, 64}), {.name = "matrix"});
    const Optimizer optimizer = strategy.make_optimizer({matrix}, torch::optim::SGDOptions(0.5).momentum(0.9));
    EXPECT_FALSE(testing::has_value(strategy.describe(), "  update  ")) << "before the first step";
    strategy.run([&](ReplicaContext& ctx) {
      matrix.value(ctx).pow(2).sum().backward();
      optimizer.step(ctx);
    });
    // A partial sum of the other's half of 16 KiB, and new weights of the own half.
    for (const char* text :
         {"'optimizer': each worker updates a part of all blocks", "cpu, in slices", "  slices  16.0 KiB"})
      EXPECT_TRUE(testing::has_value(strategy.describe(), text)) << text << " in " << strategy.describe();
    return 0;
  });
}

TEST(SlicedSlots, TakeFactorsWhereTheseAreSmallerAndAreToldToTakeEither) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const testing::FactoredGradientsAre factored("always");
  const auto program = [](Strategy& strategy) {
    const Variable weight = strategy.make_variable(wave(128, 64), {.name = "weight"});
    const Optimizer optimizer = strategy.make_optimizer({weight}, torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < 3; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        const auto x = torch::arange(128).add(100 * ctx.replica_id() + ctx.step()).to(torch::kFloat).cos();
        torch::linear(x.view({2, 64}), weight.value(ctx)).pow(2).sum().backward();
        optimizer.step(ctx, {.check_finite = step == 1});
      });
    }
    const std::string text = strategy.describe();
    const std::string form = testing::has_value(text, "slices, from factors") ? "factors"
                             : testing::has_value(text, "  slices  ")         ? "sums"
                                                                              : "none";
    optimizer.gather_slots();
    return std::vector<std::string>{sha256_of({{"weight", weight.read()},
                                               {"first", optimizer.slots()[0].read()},
                                               {"second", optimizer.slots()[1].read()}}),
                                    form};
  };
  const auto expected = run_workers({1, 4}, program).front();
  const SlotsAre sliced("sliced");
  for (const auto& [asked, form] : {std::pair{"auto", "factors"}, {"factors", "factors"}, {"sums", "sums"}}) {
    const testing::EnvironmentScope scope("LOCKSTEP_UPDATE_FORM", asked);
    for (const WorkersCase& one : {WorkersCase{2, 4, 2}, {3, 4, 1}, {4, 4, 1}}) {
      for (const auto& found : run_workers(one, program)) {
        EXPECT_EQ(found.front(), expected.front()) << one << ", " << asked;
        EXPECT_EQ(found.back(), form) << one << ", " << asked;
      }
    }
  }
}

TEST(SlicedSlots, GoOnFromWhatWasAssignedAndFromAStateOfAnyNumberOfWorkers) {
  const auto program = [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    net.optimizer.slots()[1].assign(torch::full({90, 70}, 0.125f));
    net.step(strategy);
    const auto state = net.optimizer.state();
    net.step(strategy);
    net.optimizer.load(state);
    net.step(strategy);
    std::vector<std::string> found{net.digest()};
    // What a run has loaded is rolled back where it fails.
    (void)testing::error_from<ReplicaError>([&] {
      strategy.run([&](ReplicaContext& ctx) {
        ctx.merge_call([&](Strategy&) { net.optimizer.slots()[0].assign(torch::zeros({90, 70})); });
        if (ctx.replica_id() == 3) throw std::runtime_error("in the step");
      });
    });
    net.step(strategy);
    found.push_back(net.digest());
    return found;
  };
  testing::expect_same_in_all_forms(program);
}

TEST(SlicedSlots, OfOneWorkerAreWhole) {
  const SlotsAre sliced("sliced");
  run_workers({1, 4}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    EXPECT_NO_THROW((void)net.optimizer.slots().front().read());
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
