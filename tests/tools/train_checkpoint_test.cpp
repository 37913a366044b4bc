// `lockstep train --checkpoint-dir`: a run that is stopped or killed, and goes on, ends as the one that never stopped.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "lockstep/checkpoint/exchange.h"
#include "tests/support/fault_seeds.h"
#include "tests/tools/train_checkpoint.h"

namespace {

namespace fs = std::filesystem;

using lockstep::testing::count_of;
using lockstep::testing::has;
using lockstep::testing::kTraining;
using lockstep::testing::run;
using lockstep::testing::StartedProgram;
using lockstep::testing::text_of;
using lockstep::testing::TrainCheckpoint;

TEST_F(TrainCheckpoint, AResumedRunEndsAsTheOneThatNeverStopped) {
  const std::string steps = std::string(kTraining) + "--steps 40 ";
  ASSERT_EQ(run(steps + outputs("whole")).code, 0);
  const std::string saves = " --checkpoint-dir " + path("c") + " --checkpoint-every 7 ";
  auto result = run(std::string(kTraining) + "--steps 10 --resume" + saves + outputs("parts"));
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_TRUE(has(result.output, "there is no checkpoint in " + path("c") + ": starts from the beginning"))
      << result.output;
  const std::string training = kTraining;
  int begin = 10;
  for (const std::string& command :
       {training + "--devices cpu:1 ", training + "--strategy central-storage ",
        "run -n 2 -- " LOCKSTEP_PROGRAM " " + training + "--strategy multi-worker ",
        "run -n 2 -- " LOCKSTEP_PROGRAM " " + training + "--strategy multi-worker --engine tcp --slots sliced "}) {
    result = run(command + "--steps " + std::to_string(begin + 6) + " --resume" + saves + outputs("parts"));
    EXPECT_EQ(result.code, 0) << command << result.output;
    EXPECT_TRUE(has(result.output, "goes on after step " + std::to_string(begin))) << command << result.output;
    begin += 6;
  }
  result = run(steps + "--resume" + saves + outputs("parts"));
  EXPECT_EQ(result.code, 0) << result.output;
  expect_same("parts", "whole");
  result = run(steps + "--resume" + saves + outputs("again"));
  EXPECT_EQ(result.code, 0) << "there is nothing left to do: " << result.output;
  EXPECT_EQ(nlohmann::json::parse(text_of(path("again.json")))["weights_sha256"],
            nlohmann::json::parse(text_of(path("whole.json")))["weights_sha256"]);
  EXPECT_EQ(std::distance(fs::directory_iterator(path("c")), fs::directory_iterator()), 4) << "three and the lock";
}

TEST_F(TrainCheckpoint, SigtermSavesAndTheExitCodeSaysRestart) {
  const std::string flags = std::string(kTraining) + "--steps 80 --checkpoint-dir " + path("c") + " --resume ";
  ASSERT_EQ(run(std::string(kTraining) + "--steps 80 " + outputs("whole")).code, 0);
  StartedProgram program(words(flags + "--checkpoint-every 1h" + outputs("parts")));
  program.read_until_errors_have("starts from the beginning");
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 75) << program.errors();
  EXPECT_TRUE(has(program.errors(), "; saved as " + path("c") + "/step-")) << program.errors();
  const auto result = run(flags + outputs("parts"));
  EXPECT_EQ(result.code, 0) << result.output;
  expect_same("parts", "whole");
}

// To one worker, after which the launcher starts the job again, or to the launcher, which then starts nothing again.
TEST_F(TrainCheckpoint, SigtermToAJobOfTwoWorkersSavesBothAndTheNextStartEndsAsTheRunThatWasNeverTouched) {
  const std::string training =
      "train --model mlp --replicas 4 --devices cpu:0 --global-batch 700 --learning-rate 1e-3 --seed 3 --steps ";
  for (const bool to_launcher : {false, true}) {
    const std::string name = to_launcher ? "launcher" : "worker";
    // The first start trains until it is stopped, the next one five steps more.
    const std::string script =
        "echo pid $$ >&2; last=$(ls " + path(name) + " 2>&1 | sed -n 's/^step-0*\\([0-9]\\)/\\1/p'); " +
        "[ -n \"$last\" ] && steps=$((last + 5)) || steps=100000000; exec " + LOCKSTEP_PROGRAM + " " + training +
        "$steps --strategy multi-worker --resume --checkpoint-every 1h --checkpoint-dir " + path(name) + outputs(name);
    const auto job_command =
        lockstep::testing::command({"-n", "2", "--max-restarts", "1", "--restart-pause", "0"}, script);
    StartedProgram job(job_command);
    job.read_until_errors_have("starts from the beginning");
    job.read_until_errors_have("[1] pid ");
    const std::string& lines = job.errors();
    kill(to_launcher ? job.pid() : std::stoi(lines.substr(lines.find("[1] pid ") + 8)), SIGTERM);
    EXPECT_EQ(job.wait(), to_launcher ? 75 : 0) << lines;
    EXPECT_TRUE(job.is_nobody_left());
    for (const std::string worker : {"[0] ", "[1] "}) {
      const std::size_t stopped =
          lines.find("\n" + worker + "lockstep train: a worker was asked to stop; all have ended after ");
      ASSERT_NE(stopped, std::string::npos) << worker << lines;
      EXPECT_TRUE(has(lines.substr(stopped + 1, lines.find('\n', stopped + 1) - stopped),
                      "; saved as " + path(name) + "/step-"))
          << worker << lines;
    }
    std::string next = lines;
    if (to_launcher) {
      EXPECT_FALSE(has(lines, "goes on after step")) << lines;
      const auto ended = lockstep::testing::run_to_end(job_command);
      EXPECT_EQ(ended.code, 0) << ended.errors;
      next = ended.errors;
    }
    EXPECT_TRUE(has(next, "goes on after step")) << next;
    ASSERT_EQ(run(training + std::to_string(last_step(name)) + outputs("whole")).code, 0);
    expect_same(name, "whole");
  }
}

TEST_F(TrainCheckpoint, KilledAtRandomMomentsItEndsAsTheOneThatNeverStopped) {
  const std::string flags = std::string(kTraining) + "--steps 80 ";
  ASSERT_EQ(run(flags + outputs("whole")).code, 0);
  std::mt19937 random(5);
  int kills = 0;
  int resumed = 0;
  for (int i = 0; i < 6; ++i) {
    const auto last = last_step("c");
    StartedProgram program(
        words(flags + "--checkpoint-every 5 --resume --checkpoint-dir " + path("c") + outputs("parts")));
    program.read_until_errors_have("lockstep train: ");  // it says where it begins
    if (has(program.errors(), "goes on after step")) ++resumed;
    // Kills it before it has saved, or at some moment after that; any will do.
    while (i % 3 != 0 && last_step("c") == last && kill(program.pid(), 0) == 0 && !has_ended(program.pid()))
      usleep(500);
    usleep(static_cast<useconds_t>(random() % 20'000));
    program.signal(SIGKILL);
    if (program.wait() != 0) ++kills;
  }
  EXPECT_GT(resumed, 1);
  const auto result = run(flags + "--checkpoint-every 5 --resume --checkpoint-dir " + path("c") + outputs("parts"));
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_GT(kills, 0);
  expect_same("parts", "whole");
}

TEST_F(TrainCheckpoint, AStoppedWorkerIsRestartedByTheLauncherAndTheRunEndsTheSame) {
  const std::string training =
      "train --model mlp --replicas 4 --devices cpu:0 --global-batch 700 --learning-rate 1e-3 --seed 3 --steps 40 ";
  ASSERT_EQ(run(training + outputs("whole")).code, 0);
  std::mt19937 random(11);
  for (int64_t seed = 0; seed < lockstep::testing::fault_seeds() && !HasFailure(); ++seed) {
    for (const int workers : {2, 4}) {
      fs::remove_all(path("c"));
      const std::string train = std::string(LOCKSTEP_PROGRAM) + " " + training +
                                "--strategy multi-worker --checkpoint-every 5 --resume --checkpoint-dir " + path("c") +
                                outputs("parts");
      StartedProgram job(
          lockstep::testing::command({"-n", std::to_string(workers), "--max-restarts", "3", "--restart-pause", "0"},
                                     "echo pid $$ >&2; exec " + train));
      const std::string line = "[" + std::to_string(static_cast<int>(random()) & (workers - 1)) + "] pid ";
      job.read_until_errors_have("starts from the beginning");
      job.read_until_errors_have(line);
      const std::string& lines = job.errors();
      const pid_t worker = std::stoi(lines.substr(lines.find(line) + line.size()));
      while (last_step("c") < 0 && !has_ended(job.pid())) usleep(500);
      usleep(static_cast<useconds_t>(random() % 20'000));
      kill(worker, SIGSTOP);  // the others notice it after five seconds
      EXPECT_EQ(job.wait(), 0) << job.errors();
      EXPECT_TRUE(has(job.errors(), "goes on after step")) << workers << " workers: the stop came too late";
      EXPECT_TRUE(job.is_nobody_left());
      expect_same("parts", "whole");
    }
  }
}

TEST_F(TrainCheckpoint, AFolderWithCheckpointsOfAnotherRunIsNotOverwritten) {
  const std::string flags = std::string(kTraining) + "--steps 3 --checkpoint-dir " + path("c");
  ASSERT_EQ(run(flags).code, 0);
  const auto again = run(flags);
  EXPECT_EQ(again.code, 2) << again.output;
  EXPECT_TRUE(has(again.output, "--resume")) << again.output;
  const auto other =
      run("train --model mlp --replicas 3 --devices cpu:0 --steps 6 --seed 3 --resume --checkpoint-dir " + path("c"));
  EXPECT_EQ(other.code, 2) << other.output;
  EXPECT_TRUE(has(other.output, "LS-CHECKPOINT-MISFIT")) << other.output;
}

TEST_F(TrainCheckpoint, OddFlagsAreUsage) {
  for (const char* flags : {"--resume", "--checkpoint-every 5", "--checkpoint-every 0 --checkpoint-dir x",
                            "--checkpoint-every 5x --checkpoint-dir x", "--checkpoint-every m --checkpoint-dir x"}) {
    const auto result = run(std::string("train --steps 1 ") + flags);
    EXPECT_EQ(result.code, 2) << flags << "\n" << result.output;
  }
  EXPECT_FALSE(fs::exists("x"));
}

TEST_F(TrainCheckpoint, TheCommandLooksIntoCheckpoints) {
  const std::string saves =
      " --checkpoint-every 2 --checkpoint-dir " + path("c") + " --export " + path("w.safetensors");
  ASSERT_EQ(run(std::string(kTraining) + "--steps 4" + saves).code, 0);
  const auto json_of = [&](const std::string& command, int code) {
    const auto result = run("checkpoint " + command + " --json");
    EXPECT_EQ(result.code, code) << result.output;
    return nlohmann::json::parse(result.output, nullptr, false);
  };
  const std::string first = path("c/step-0000000002");
  const std::string second = path("c/step-0000000004");
  const auto list = json_of("list " + path("c"), 0);
  ASSERT_EQ(list["checkpoints"].size(), 2u);
  EXPECT_EQ(list["checkpoints"][1]["path"], second);
  EXPECT_EQ(list["checkpoints"][1]["state"], "whole");
  const auto show = json_of("show " + path("c"), 0);
  EXPECT_EQ(show["step"], 4);
  EXPECT_EQ(show["replicas"], 2);
  EXPECT_TRUE(std::any_of(show["tensors"].begin(), show["tensors"].end(), [](const auto& one) {
    return one["form"] == "Float [256, 784]";
  })) << show;
  EXPECT_EQ(json_of("verify " + path("c"), 0)["checkpoints"].size(), 2u);
  EXPECT_EQ(json_of("diff " + second + " " + second, 0)["differences"].size(), 0u);
  const auto diff = json_of("diff " + first + " " + second, 1)["differences"];
  EXPECT_TRUE(std::any_of(diff.begin(), diff.end(), [](const auto& one) {
    return one["kind"] == "mirrored" && one["largest_difference"] > 0 && one["differing"] > 0;
  })) << diff;
  EXPECT_EQ(run("checkpoint export " + second + " " + path("again.safetensors")).code, 0);
  EXPECT_GT(fs::file_size(path("again.safetensors")), 1000000u);
  EXPECT_EQ(run("checkpoint export " + second + " " + path("again.pt")).code, 0);
  EXPECT_EQ(text_of(path("again.pt")).substr(0, 2), "PK");
  const auto weights = lockstep::load_tensors(path("again.safetensors"));
  const auto dictionary = lockstep::load_tensors(path("again.pt"));
  EXPECT_EQ(dictionary.size(), weights.size());
  for (const auto& [name, value] : weights) EXPECT_TRUE(dictionary.at(name).equal(value)) << name;
  EXPECT_GT(fs::file_size(path("w.safetensors")), 1000000u);
  for (const char* command : {"list", "show", "verify"}) {
    const auto result = run(std::string("checkpoint ") + command + " " + path("c"));
    EXPECT_EQ(result.code, 0) << result.output;
    EXPECT_TRUE(has(result.output, "step-0000000004")) << result.output;
  }

  std::fstream file(second + "/weights.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-3, std::ios::end);
  file.put('\x55');
  file.close();
  EXPECT_EQ(json_of("verify " + first, 0)["checkpoints"][0]["whole"], true);
  const auto damaged = run("checkpoint verify " + path("c"));
  EXPECT_EQ(damaged.code, 1) << damaged.output;
  EXPECT_TRUE(has(damaged.output, "weights.safetensors") && has(damaged.output, "every byte is right"))
      << damaged.output;
  fs::resize_file(second + "/manifest.json", 50);
  EXPECT_EQ(json_of("list " + path("c"), 1)["checkpoints"][0]["state"], "damaged");
  EXPECT_EQ(json_of("show " + path("c"), 0)["step"], 2) << "the newest whole one";
  for (const char* command : {"list", "show", "verify", "export"}) {
    const auto nowhere = run(std::string("checkpoint ") + command + " " + path("nowhere") + " " +
                             (std::string(command) == "export" ? path("x") : ""));
    EXPECT_EQ(nowhere.code, 3) << nowhere.output;
    EXPECT_EQ(count_of(nowhere.output, "\n"), 1u) << nowhere.output;
  }
  EXPECT_EQ(run("checkpoint").code, 2);
}

}  // namespace
