// When `lockstep train` saves where the cost of saving decides.
#include "tools/train/checkpoint_schedule.h"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>

namespace {

using lockstep::tools::CheckpointSchedule;

TEST(CheckpointSchedule, SavesFollowEachOtherWhenTheirCostIsKnownAndIsOneHundredthOfTheTime) {
  lockstep::OneDeviceStrategy strategy({.device = "cpu:0"});
  CheckpointSchedule schedule("");
  double cost = 0;
  int64_t step = 0;
  using Clock = std::chrono::steady_clock;
  /// The seconds until a save is due, at most `most`.
  const auto due_after = [&](double most) {
    const auto start = Clock::now();
    for (;;) {
      const double now = std::chrono::duration<double>(Clock::now() - start).count();
      if (now > most || schedule.is_due(strategy, ++step, [&] { return cost; })) return now;
    }
  };
  EXPECT_LT(due_after(20), 20) << "the first one soon";
  schedule.saved(cost);
  EXPECT_GT(due_after(1.2), 1.2) << "it is not on the disk yet";
  cost = 0.013;
  EXPECT_LT(due_after(20), 20);
  schedule.saved(cost);
  cost = 0.5;  // half a second in 50
  EXPECT_GT(due_after(1.2), 1.2);
}

TEST(CheckpointSchedule, ASaveThatTakesLongerThanAMinuteIsNotFollowedAtOnce) {
  lockstep::OneDeviceStrategy strategy({.device = "cpu:0"});
  CheckpointSchedule schedule("");
  EXPECT_EQ(schedule.longest_wait(), 1);
  schedule.saved(0.5);
  EXPECT_EQ(schedule.longest_wait(), 60) << "the one before took less than 0.6 s";
  schedule.saved(70);
  EXPECT_EQ(schedule.longest_wait(), 7000) << "as long as the last one is not known to be faster";
}

TEST(CheckpointSchedule, ATimeIsWhatPassesBetweenSavesWhateverTheyCost) {
  for (const auto& [text, seconds] : {std::pair("90s", 90), std::pair("10m", 600), std::pair("2h", 7200)})
    EXPECT_EQ(CheckpointSchedule(text).longest_wait(), seconds);
  lockstep::OneDeviceStrategy strategy({.device = "cpu:0"});
  CheckpointSchedule::Clock::time_point now{};
  CheckpointSchedule schedule("90s", [&] { return now; });
  int64_t step = 0;
  for (const double cost : {0.0, 50.0}) {
    const auto last = now;
    do now += std::chrono::milliseconds(250);
    while (!schedule.is_due(strategy, ++step, [&] { return cost; }));
    EXPECT_GE(now - last, std::chrono::seconds(90));
    EXPECT_LT(now - last, std::chrono::seconds(92));
    schedule.saved(cost);
  }
}

TEST(CheckpointSchedule, StepsAreCounted) {
  lockstep::OneDeviceStrategy strategy({.device = "cpu:0"});
  CheckpointSchedule schedule("3");
  std::string due;
  for (int64_t step = 1; step <= 7; ++step) {
    due += schedule.is_due(strategy, step, [] { return 0.0; }) ? 'x' : '.';
    schedule.saved(0);
  }
  EXPECT_EQ(due, "..x..x.");
}

}  // namespace
