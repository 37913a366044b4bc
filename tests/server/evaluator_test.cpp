// The evaluator: it reads a run's checkpoints, and connects to nobody.
#include "lockstep/server/evaluator.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/server/parameter_server.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using internal::CheckpointFollower;
using internal::TrainingEnd;
using testing::expect_error;
using testing::ScratchFolder;

const ClusterSpec kEvaluator = {.jobs = {{"chief", {"a:1"}}, {"worker", {"b:1", "c:1"}}, {"ps", {"d:1"}}},
                                .job = "evaluator"};

/// What a launcher gives to the evaluator, as tools/run/end_notice.h does.
class LauncherPipe {
 public:
  LauncherPipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    reader_ = ends[0];
    writer_ = ends[1];
    struct stat status = {};
    fstat(reader_, &status);
    setenv("LOCKSTEP_END_NOTICE", fmt::format("{}:{}", reader_, status.st_ino).c_str(), 1);
  }
  ~LauncherPipe() {
    unsetenv("LOCKSTEP_END_NOTICE");
    end();
    close(reader_);
  }
  LauncherPipe(const LauncherPipe&) = delete;
  LauncherPipe& operator=(const LauncherPipe&) = delete;
  void end() {
    if (writer_ >= 0) close(writer_);
    writer_ = -1;
  }

 private:
  int reader_ = -1;
  int writer_ = -1;
};

/// The program that all tasks run: a counter, to which each step adds 1.
struct Program {
  Program(ParameterServerOptions options, const fs::path& folder)
      : strategy(std::move(options)),
        counter(strategy.make_variable(torch::zeros({}), {.name = "counter", .trainable = false})),
        manager(Checkpoint(strategy), {.directory = folder, .keep = 1, .async = false}),
        add(strategy.step("add", Add{counter})) {}

  struct Add {
    Variable counter;
    void operator()(WorkerContext& ctx) const { counter.assign_add(ctx, torch::ones({})); }
  };
  double value() { return counter.read().item<double>(); }
  void step_and_save() {
    strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(add); });
    manager.save();
  }

  ParameterServerStrategy strategy;
  Variable counter;
  CheckpointManager manager;
  Step<Add> add;
};

class Evaluator : public ScratchFolder {};

TEST_F(Evaluator, ReadsTheNewestWhereItIsBehindAndAlwaysTheLast) {
  LauncherPipe launcher;
  Program evaluator({.cluster = kEvaluator}, folder_);
  EXPECT_EQ(evaluator.strategy.num_workers(), 2) << "the cluster's";
  std::promise<void> first_seen;
  std::promise<void> all_saved;
  std::thread chief([&] {
    Program program({.cluster = ClusterSpec(), .workers = 1}, folder_);
    program.step_and_save();
    first_seen.get_future().wait();
    program.step_and_save();
    program.step_and_save();
    launcher.end();  // while the evaluator is at the first one
    all_saved.set_value();
  });
  std::vector<double> values;
  std::vector<std::string> names;
  evaluator.strategy.on_checkpoint([&](const fs::path& path, const RestoreInfo& /*info*/) {
    values.push_back(evaluator.value());
    names.push_back(path.filename().string());
    if (values.size() > 1) return;
    first_seen.set_value();
    all_saved.get_future().wait();
    EXPECT_TRUE(fs::exists(path / "manifest.json")) << "two others were saved, and one is kept";
  });
  const int code = evaluator.strategy.coordinate([](Coordinator&) { FAIL() << "this is not the chief"; });
  chief.join();
  EXPECT_EQ(code, 0);
  EXPECT_EQ(values, (std::vector<double>{1, 3}));
  ASSERT_EQ(names.size(), 2u);
  EXPECT_NE(names[0], names[1]);
}

TEST_F(Evaluator, CallsFunctionsOfEachFormInTheirOrder) {
  Program program({.cluster = ClusterSpec(), .workers = 1}, folder_);
  program.step_and_save();
  LauncherPipe launcher;
  launcher.end();
  Program evaluator({.cluster = kEvaluator}, folder_);
  std::string calls;
  evaluator.strategy.on_checkpoint([&] { calls += "a"; });
  evaluator.strategy.on_checkpoint([&](const RestoreInfo& info) { calls += info.missing.empty() ? "b" : "?"; });
  evaluator.strategy.on_checkpoint([&, moved = std::make_unique<int>(1)](const fs::path&) { calls += "c"; });
  EXPECT_EQ(evaluator.strategy.coordinate([](Coordinator&) {}), 0);
  EXPECT_EQ(calls, "abc");
}

TEST_F(Evaluator, ThrowsWhatAFunctionThrows) {
  Program program({.cluster = ClusterSpec(), .workers = 1}, folder_);
  program.step_and_save();
  LauncherPipe launcher;
  Program evaluator({.cluster = kEvaluator}, folder_);
  evaluator.strategy.on_checkpoint([] { throw std::out_of_range("the user's own"); });
  EXPECT_THROW(evaluator.strategy.coordinate([](Coordinator&) {}), std::out_of_range);
}

TEST_F(Evaluator, OtherTasksCallNothing) {
  Program program({.cluster = ClusterSpec(), .workers = 1}, folder_);
  program.strategy.on_checkpoint([] { FAIL() << "this is no evaluator"; });
  program.step_and_save();
  EXPECT_EQ(program.value(), 1);
}

TEST_F(Evaluator, NeedsAManagerAndMayHaveNothingToDo) {
  LauncherPipe launcher;
  ParameterServerStrategy strategy({.cluster = kEvaluator});
  EXPECT_EQ(strategy.coordinate([](Coordinator&) { FAIL() << "this is not the chief"; }), 0);
  strategy.on_checkpoint([] {});
  expect_error<UsageError>([&] { strategy.coordinate([](Coordinator&) {}); }, "LS-OPTION", {"CheckpointManager"});
}

TEST_F(Evaluator, WithoutALauncherTrainingEndsWhenNobodyHoldsTheFolder) {
  std::vector<CheckpointFollower> followers;
  followers.emplace_back(internal::host_files(), folder_);
  const auto now = TrainingEnd::Clock::now();
  using std::chrono::minutes;
  TrainingEnd never;
  EXPECT_FALSE(never.has_come(followers, now + minutes(50)));
  expect_error<PeerError>([&] { never.has_come(followers, now + minutes(70)); }, "LS-EVALUATOR-ALONE", {"an hour"});
  TrainingEnd end;
  {
    Program program({.cluster = ClusterSpec(), .workers = 1}, folder_);
    program.manager.claim();
    EXPECT_FALSE(end.has_come(followers, now + minutes(70))) << "the run is there, and has not saved yet";
  }
  EXPECT_FALSE(end.has_come(followers, now + minutes(70) + std::chrono::seconds(50))) << "it may come back";
  EXPECT_TRUE(end.has_come(followers, now + minutes(72)));
}

TEST(ServerTasks, AChiefAndWorkersAreNeeded) {
  expect_error<ClusterError>(
      [] {
        ParameterServerStrategy({.cluster = ClusterSpec{.jobs = {{"worker", {"a:1"}}, {"ps", {"b:1"}}}}});
      },
      "LS-CLUSTER-SPEC", {"1 task of the job 'ps'", "'chief'"});
}

}  // namespace
}  // namespace lockstep
