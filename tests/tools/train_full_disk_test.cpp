// `lockstep train --checkpoint-dir` on a disk that refuses the checkpoints: training goes on, and its results are not
// lost.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "lockstep/checkpoint/exchange.h"
#include "tests/tools/train_checkpoint.h"

namespace {

namespace fs = std::filesystem;

using lockstep::testing::count_of;
using lockstep::testing::Ended;
using lockstep::testing::has;
using lockstep::testing::kTraining;
using lockstep::testing::run;
using lockstep::testing::StartedProgram;
using lockstep::testing::text_of;
using lockstep::testing::TrainCheckpoint;

constexpr const char* kGoesOn = "a checkpoint could not be saved, training goes on: '";
constexpr const char* kEarlier = "an earlier save failed, the last one follows: '";
constexpr const char* kLast = "the last checkpoint could not be saved: '";

/// For a child before its program: its files have at most so many bytes.
void limit_files_to(rlim_t bytes) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = bytes;
  setrlimit(RLIMIT_FSIZE, &limit);
}

/// Enough for the weights, and too little for the slots in a checkpoint.
void limit_files() { limit_files_to(1'600'000); }

/// Another process's files may be as long as they like again.
void lift_limit(pid_t process) {
  rlimit limit{};
  ASSERT_EQ(prlimit(process, RLIMIT_FSIZE, nullptr, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(prlimit(process, RLIMIT_FSIZE, &limit, nullptr), 0);
}

class TrainFullDisk : public TrainCheckpoint {
 protected:
  std::string saves() const { return " --checkpoint-dir " + path("c") + " --checkpoint-every 5 "; }
  std::string all_outputs(const std::string& name) const {
    return outputs(name) + "--export " + path(name + ".safetensors") + " ";
  }
  Ended run_limited(const std::string& flags) const { return lockstep::testing::run_to_end(words(flags), limit_files); }
  void expect_same_weights(const std::string& name, const std::string& expected) const {
    expect_same(name, expected);
    const auto weights = lockstep::load_tensors(path(expected + ".safetensors"));
    const auto found = lockstep::load_tensors(path(name + ".safetensors"));
    ASSERT_EQ(found.size(), weights.size());
    for (const auto& [key, value] : weights) EXPECT_TRUE(found.at(key).equal(value)) << key;
  }
};

TEST_F(TrainFullDisk, WhereTheLastSaveFailsEverythingElseIsWrittenAndTheExitCodeIsTheDisks) {
  const std::string training = std::string(kTraining) + "--steps 12 ";
  ASSERT_EQ(run(training + all_outputs("whole")).code, 0);
  const Ended ended = run_limited(training + saves() + all_outputs("full"));
  EXPECT_EQ(ended.code, 3) << ended.errors;
  EXPECT_EQ(count_of(ended.errors, kGoesOn), 1u) << "the save of step 5, at step 10: " << ended.errors;
  EXPECT_EQ(count_of(ended.errors, kLast), 1u) << ended.errors;
  EXPECT_TRUE(has(ended.errors, "File too large")) << ended.errors;
  EXPECT_TRUE(has(ended.output, "evaluation accuracy")) << ended.output;
  EXPECT_EQ(last_step("c"), -1);
  expect_same_weights("full", "whole");
}

TEST_F(TrainFullDisk, TheErrorOfAnEarlierSaveIsSaidAtTheEnd) {
  const Ended ended = run_limited(std::string(kTraining) + "--steps 7 " + saves());
  EXPECT_EQ(ended.code, 3) << ended.errors;
  EXPECT_EQ(count_of(ended.errors, kGoesOn), 0u) << ended.errors;
  const auto earlier = ended.errors.find(kEarlier + path("c") + "/step-0000000005/");
  const auto last = ended.errors.find(kLast + path("c") + "/step-0000000007/");
  EXPECT_NE(earlier, std::string::npos) << ended.errors;
  EXPECT_NE(last, std::string::npos) << ended.errors;
  EXPECT_LT(earlier, last);
}

TEST_F(TrainFullDisk, ASaveThatFailsIsAWarningAndTheNextOneOnAFreeDiskSucceeds) {
  StartedProgram program(words(std::string(kTraining) + "--steps 100000000 " + saves() + outputs("parts")),
                         limit_files);
  program.read_until_errors_have(kGoesOn);
  lift_limit(program.pid());
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 75) << program.errors();
  EXPECT_TRUE(has(program.errors(), "; saved as " + path("c") + "/step-")) << program.errors();
  EXPECT_FALSE(has(program.errors(), kLast)) << program.errors();
  const std::string training = std::string(kTraining) + "--steps " + std::to_string(last_step("c") + 3) + " ";
  ASSERT_EQ(run(training + outputs("whole")).code, 0);
  const auto result = run(training + "--resume" + saves() + outputs("parts"));
  EXPECT_EQ(result.code, 0) << result.output;
  expect_same("parts", "whole");
}

TEST_F(TrainFullDisk, ARunThatIsAskedToStopAndCannotSaveSaysSo) {
  StartedProgram program(words(std::string(kTraining) + "--steps 100000000 " + saves()), limit_files);
  program.read_until_errors_have(kGoesOn);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 3) << program.errors();
  EXPECT_TRUE(has(program.errors(), kLast)) << program.errors();
  EXPECT_TRUE(has(program.errors(), "a worker was asked to stop; all have ended after")) << program.errors();
  EXPECT_FALSE(has(program.errors(), "saved as")) << program.errors();
}

TEST_F(TrainFullDisk, WhatCannotBeExportedDoesNotKeepTheReportBack) {
  const std::string training = std::string(kTraining) + "--steps 3 ";
  ASSERT_EQ(run(training + outputs("whole")).code, 0);
  for (const std::string file : {"full/w.safetensors", "full/w.pt"}) {
    fs::create_directories(path("full"));
    StartedProgram program(words(training + outputs("full") + "--export " + path(file)),
                           [] { limit_files_to(500'000); });
    EXPECT_EQ(program.wait(), 3) << program.errors();
    EXPECT_TRUE(has(program.errors(), "the weights could not be exported: '" + path(file))) << program.errors();
    EXPECT_TRUE(fs::is_empty(path("full")));
    expect_same("full", "whole");
  }
}

TEST_F(TrainFullDisk, OfTwoWorkersTheJobEndsWithTheDisksExitCodeAndTheFilesAreThere) {
  const std::string training =
      "train --model mlp --replicas 2 --devices cpu:0 --global-batch 700 --learning-rate 1e-3 --seed 3 --steps 12 ";
  ASSERT_EQ(run(training + all_outputs("whole")).code, 0);
  StartedProgram job(lockstep::testing::command({"-n", "2"}, std::string("exec ") + LOCKSTEP_PROGRAM + " " + training +
                                                                 "--strategy multi-worker --engine tcp" + saves() +
                                                                 all_outputs("full")),
                     limit_files);
  EXPECT_EQ(job.wait(), 65) << job.errors();
  for (const char* said : {"[0] lockstep train: a checkpoint could not be saved, training goes on: ",
                           "[0] lockstep train: the last checkpoint could not be saved: "}) {
    EXPECT_TRUE(has(job.errors(), said)) << job.errors();
  }
  expect_same_weights("full", "whole");
}

}  // namespace
