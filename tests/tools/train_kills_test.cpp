// Workers of `lockstep train` that are killed at random moments and restarted by `lockstep run`: the run ends with the
// digests and the samples of the one that was never touched.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "tests/support/fault_seeds.h"
#include "tests/tools/train_checkpoint.h"

namespace {

namespace fs = std::filesystem;

using lockstep::testing::command;
using lockstep::testing::kTraining;
using lockstep::testing::lines_of;
using lockstep::testing::run;
using lockstep::testing::StartedProgram;
using lockstep::testing::text_of;
using lockstep::testing::TrainCheckpoint;

class TrainKills : public TrainCheckpoint, public ::testing::WithParamInterface<int> {
 protected:
  /// The processes that worker `worker` has been so far, one for each start of the job.
  std::vector<std::string> processes(const std::string& name, int worker) const {
    return lines_of(text_of(path(name + ".pids." + std::to_string(worker))));
  }
};

TEST_P(TrainKills, AnyWorkerAtAnyMoment) {
  constexpr int kSteps = 200;
  const int workers = GetParam();
  const int wanted = static_cast<int>(lockstep::testing::fault_seeds(2));  // kills
  const std::string training = std::string("train --model mlp --replicas 4 --devices cpu:0 --global-batch 400 ") +
                               "--learning-rate 1e-3 --seed 3 --steps " + std::to_string(kSteps) + " ";
  ASSERT_EQ(run(training + outputs("whole")).code, 0);
  std::mt19937 random(static_cast<unsigned>(7 + workers));
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  int kills = 0;
  // A kill may come when the run is over. Then another run takes the rest of them.
  for (int job = 0; kills < wanted; ++job) {
    ASSERT_LT(job, wanted) << "runs end before they are killed";
    const std::string name = "parts" + std::to_string(job);
    const std::string train = std::string(LOCKSTEP_PROGRAM) + " " + training +
                              "--strategy multi-worker --checkpoint-every 5 --resume --checkpoint-dir " +
                              path("of" + name) + outputs(name);
    StartedProgram launcher(
        command({"-n", std::to_string(workers), "--max-restarts", std::to_string(wanted), "--restart-pause", "0"},
                "echo $$ >> " + path(name + ".pids.") + "$RANK; exec " + train));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(40 + 20 * wanted);
    launcher.allow(std::chrono::seconds(60 + 20 * wanted));
    const auto until = [&](const auto& holds) {
      while (!holds()) {
        if (has_ended(launcher.pid()) || std::chrono::steady_clock::now() > deadline) return false;
        usleep(500);
      }
      return true;
    };
    const int first = kills;
    while (kills < wanted) {
      const int worker = below(workers);
      const auto start = static_cast<std::size_t>(kills - first);
      if (!until([&] { return processes(name, worker).size() > start; })) break;
      if (kills % 2 == 0) {  // when so much of the run was saved, or a little later
        const int64_t saved = kSteps * (kills - first) / (wanted + 1);
        if (!until([&] { return last_step("of" + name) >= saved; })) break;
        usleep(static_cast<useconds_t>(below(50'000)));
      } else {  // while it starts, joins, restores, or soon after that
        usleep(static_cast<useconds_t>(below(1'500'000)));
      }
      if (has_ended(launcher.pid())) break;
      if (kill(std::stoi(processes(name, worker)[start]), SIGKILL) != 0) break;  // it has ended by itself
      // A kill of a worker that has ended but was not waited for ends nothing, and does not count.
      if (!until([&] { return processes(name, worker).size() > start + 1; })) break;
      ++kills;
    }
    EXPECT_EQ(launcher.wait(), 0) << launcher.errors();
    EXPECT_TRUE(launcher.is_nobody_left());
    expect_same(name, "whole");
    EXPECT_EQ(processes(name, 0).size(), static_cast<std::size_t>(kills - first) + 1) << "each kill is one more start";
  }
  RecordProperty("kills", kills);
}

INSTANTIATE_TEST_SUITE_P(Workers, TrainKills, ::testing::Values(1, 2, 4),
                         [](const auto& test) { return std::to_string(test.param); });

}  // namespace
