// What a checkpoint and an optimizer's state have of schedules, and what is said where a program does not set them
// again.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/optim/rate_adder.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using testing::power_of_10;
using testing::RateAdder;

class ScheduleInACheckpoint : public testing::ScratchFolder {};

TEST_F(ScheduleInACheckpoint, GoesOnAtTheStepOfTheCheckpoint) {
  const std::string path = (folder_ / "one").string();
  const auto make = [] { return MirroredStrategy({.devices = lanes(1), .replicas = 2, .seed = 1}); };
  MirroredStrategy first = make();
  RateAdder whole(first);
  whole.optimizer.set_schedule(power_of_10);
  whole.step();
  whole.step();
  Checkpoint(first).save(path);
  whole.step();

  MirroredStrategy second = make();
  RateAdder resumed(second);
  resumed.optimizer.set_schedule(power_of_10);
  const RestoreInfo info = Checkpoint(second).restore(path);
  EXPECT_TRUE(info.missing.empty() && info.unexpected.empty());
  EXPECT_EQ(resumed.optimizer.learning_rate(), 100);
  resumed.step();
  EXPECT_EQ(resumed.value(), whole.value());
}

/// The findings that a run goes on without the schedule of a state.
std::vector<std::string> missing_schedules(const Strategy& strategy) {
  std::vector<std::string> texts;
  for (const Finding& one : strategy.findings()) {
    if (one.code == "LS-SCHEDULE-MISSING") texts.push_back(one.text);
  }
  return texts;
}

/// A strategy and an optimizer to which a test gives a state back.
struct Resumed {
  MirroredStrategy strategy{{.devices = lanes(1), .replicas = 2, .seed = 1}};
  RateAdder one{strategy};
};

/// What has a schedule, after two steps.
std::unique_ptr<Resumed> scheduled() {
  auto run = std::make_unique<Resumed>();
  run->one.optimizer.set_schedule(power_of_10);
  run->one.step();
  run->one.step();
  return run;
}

TEST_F(ScheduleInACheckpoint, ThatIsNotSetAgainIsSaidOnce) {
  const std::string path = (folder_ / "one").string();
  const auto whole = scheduled();
  Checkpoint(whole->strategy).save(path);
  Resumed restored;
  Checkpoint(restored.strategy).restore(path);
  EXPECT_TRUE(missing_schedules(restored.strategy).empty()) << "there is time until the first step";
  restored.one.step();
  restored.one.step();
  const std::vector<std::string> texts = missing_schedules(restored.strategy);
  ASSERT_EQ(texts.size(), 1U);
  for (const char* part : {"'optimizer'", "group 0", "100", "set_schedule", "set_learning_rate"})
    EXPECT_NE(texts.front().find(part), std::string::npos) << part << " in: " << texts.front();
  EXPECT_EQ(restored.strategy.findings().front().count, 1);
  EXPECT_EQ(restored.one.value(), 11 + 100 + 100);

  Resumed loaded;
  loaded.one.optimizer.load(whole->one.optimizer.state());
  loaded.one.step();
  EXPECT_EQ(missing_schedules(loaded.strategy).size(), 1U);
}

TEST_F(ScheduleInACheckpoint, ThatIsSetAgainOrReplacedByARateIsNotMissing) {
  const std::string path = (folder_ / "one").string();
  const auto whole = scheduled();
  Checkpoint(whole->strategy).save(path);
  const auto expect_silent = [&](const auto& before, const auto& after) {
    Resumed restored;
    before(restored.one.optimizer);
    Checkpoint(restored.strategy).restore(path);
    after(restored.one.optimizer);
    restored.one.step();
    EXPECT_TRUE(missing_schedules(restored.strategy).empty());
  };
  const auto nothing = [](const Optimizer&) {};
  const auto set_schedule = [](const Optimizer& optimizer) { optimizer.set_schedule(power_of_10); };
  expect_silent(set_schedule, nothing);
  expect_silent(nothing, set_schedule);
  expect_silent(nothing, [](const Optimizer& optimizer) { optimizer.set_learning_rate(0.5); });
  expect_silent(nothing, [](const Optimizer& optimizer) { optimizer.set_learning_rate(0.5, 0); });
  // A rate that was set before is overwritten by the checkpoint's.
  Resumed early;
  early.one.optimizer.set_learning_rate(0.5);
  Checkpoint(early.strategy).restore(path);
  early.one.step();
  EXPECT_EQ(missing_schedules(early.strategy).size(), 1U);
}

TEST_F(ScheduleInACheckpoint, IsNotedOnlyWhereThereIsOne) {
  const std::string path = (folder_ / "one").string();
  Resumed plain;
  plain.one.step();
  EXPECT_FALSE(plain.one.optimizer.state().contains("has_schedule/0"));
  Checkpoint(plain.strategy).save(path);
  // A checkpoint that says nothing of schedules, as earlier versions wrote them all, is restored as before.
  Resumed restored;
  const RestoreInfo info = Checkpoint(restored.strategy).restore(path);
  EXPECT_TRUE(info.missing.empty() && info.unexpected.empty());
  restored.one.step();
  EXPECT_TRUE(missing_schedules(restored.strategy).empty());

  const auto whole = scheduled();
  EXPECT_TRUE(whole->one.optimizer.state().at("has_schedule/0").item<bool>());
  // What was restored and has made no step yet is saved with its schedule.
  const std::string scheduled_path = (folder_ / "two").string();
  Checkpoint(whole->strategy).save(scheduled_path);
  Resumed between;
  Checkpoint(between.strategy).restore(scheduled_path);
  EXPECT_TRUE(between.one.optimizer.state().contains("has_schedule/0"));
  Checkpoint(between.strategy).restore(path);
  EXPECT_FALSE(between.one.optimizer.state().contains("has_schedule/0"));
}

TEST(ScheduleOfAnOptimizer, RefusesExtraStepsThatAreNoCount) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const RateAdder one(strategy);
  const auto write = [&](const std::string& name, double number) {
    for (const StateItem& item : strategy.state_items()) {
      if (item.name == name) return item.write({torch::tensor(number, torch::kDouble)});
    }
    ADD_FAILURE() << "there is no item " << name;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double number : {-1.0, 0.5, std::nan(""), infinity, std::ldexp(1.0, 54)}) {
    expect_error<UsageError>([&] { write("optimizer/extra_steps/0", number); }, "LS-STATE-MISFIT", {"'optimizer'"});
  }
  expect_error<UsageError>([&] { write("optimizer/has_schedule/0", 2); }, "LS-STATE-MISFIT", {"'optimizer'"});
  one.optimizer.set_schedule(power_of_10);
  write("optimizer/extra_steps/0", 3);
  EXPECT_EQ(one.optimizer.learning_rate(), 1000);
}

}  // namespace
}  // namespace lockstep
