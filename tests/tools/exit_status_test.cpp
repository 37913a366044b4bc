// With which code the program ends: alone, and as a worker of a launcher that may start the job again.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/free_port.h"
#include "tests/tools/run_support.h"

namespace {

using lockstep::testing::count_of;
using lockstep::testing::Ended;
using lockstep::testing::has;
using lockstep::testing::run_to_end;
using lockstep::testing::StartedProgram;

const std::string kStart = "LOCKSTEP_RESTART_COUNT=0";

/// The program with one more variable.
Ended run_with(const std::string& variable, std::vector<std::string> words) {
  words.insert(words.begin(), {"env", variable, LOCKSTEP_PROGRAM});
  return run_to_end(words);
}

TEST(ExitStatus, TellsALauncherWhetherToStartAgain) {
  const auto codes = [](const std::vector<std::string>& words) {
    return std::vector<int>{run_with("ALONE=1", words).code, run_with(kStart, words).code};
  };
  const std::vector<std::string> train = {"train", "--model", "mlp", "--devices", "cpu:0", "--steps", "50"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = train;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  EXPECT_EQ(codes(with({"--epochs", "none"})), (std::vector<int>{2, 2})) << "the command line";
  EXPECT_EQ(codes(with({"--engine", "tls"})), (std::vector<int>{2, 2})) << "flags that do not fit";
  EXPECT_EQ(codes(with({"--data", "idx:/nowhere"})), (std::vector<int>{3, 65})) << "data";
  EXPECT_EQ(codes(with({"--optimizer", "sgd", "--learning-rate", "1e25"})), (std::vector<int>{1, 65})) << "the loss";
}

class CheckpointStatus : public lockstep::testing::RunProgram {};

TEST_F(CheckpointStatus, OfADamagedOneTellsALauncherNotToStartAgain) {
  ASSERT_EQ(run_to_end({LOCKSTEP_PROGRAM, "train", "--model", "mlp", "--devices", "cpu:0", "--steps", "1",
                        "--checkpoint-dir", path("c")})
                .code,
            0);
  std::filesystem::resize_file(path("c") + "/step-0000000001/weights.safetensors", 20);
  for (const char* command : {"verify", "list"}) {
    const std::vector<std::string> words = {"checkpoint", command, path("c")};
    EXPECT_EQ(run_with("ALONE=1", words).code, 1) << command;
    EXPECT_EQ(run_with(kStart, words).code, 65) << command;
  }
}

TEST_F(CheckpointStatus, AndThatOfOthersSaysThatWhatWasPrintedIsLost) {
  if (!std::filesystem::is_character_file("/dev/full")) GTEST_SKIP() << "this system has no device /dev/full";
  const auto lost = [](const std::string& command) {
    return lockstep::testing::run_program("f() { " LOCKSTEP_PROGRAM " \"$@\" 2>&1 >/dev/full; }; f", command);
  };
  std::filesystem::create_directories(path("c"));
  for (const std::string& command :
       {std::string("--help"), std::string("cluster"), std::string("cluster --json"), "checkpoint list " + path("c"),
        "checkpoint list --json " + path("c"), std::string("train --model mlp --devices cpu:0 --steps 1")}) {
    const auto result = lost(command);
    EXPECT_EQ(result.code, 3) << command << "\n" << result.output;
    EXPECT_TRUE(has(result.output, "standard output: No space left on device [LS-FILE]")) << result.output;
  }
  EXPECT_EQ(lost("checkpoint verify " + path("c")).code, 3) << "its own error";
  EXPECT_FALSE(has(lost("checkpoint verify " + path("c")).output, "standard output"));
}

TEST(ExitStatus, AConfigurationThatIsWrongIsNotStartedAgain) {
  const std::string script = std::string("LOCKSTEP_NUM_WORKERS=four exec ") + LOCKSTEP_PROGRAM + " cluster";
  EXPECT_EQ(run_to_end({"sh", "-c", script}).code, 3) << "without a launcher";
  const Ended job =
      run_to_end(lockstep::testing::command({"-n", "2", "--max-restarts", "2", "--restart-pause", "0"}, script));
  EXPECT_EQ(job.code, 78) << job.errors;
  EXPECT_FALSE(has(job.errors, "starting all again")) << job.errors;
}

TEST(ExitStatus, AWorkerThatHasLostAnotherOneAsksItsLauncherToStartAgain) {
  for (const auto& [variable, code] : {std::pair(std::string("ALONE=1"), 1), std::pair(kStart, 75)}) {
    const std::string chief = "LOCKSTEP_CHIEF_ADDRESS=127.0.0.1:" + std::to_string(lockstep::testing::free_port());
    const auto worker = [&, name = variable](const std::string& index) {
      return std::vector<std::string>{"env",
                                      name,
                                      chief,
                                      "LOCKSTEP_NUM_WORKERS=2",
                                      "LOCKSTEP_WORKER_INDEX=" + index,
                                      LOCKSTEP_PROGRAM,
                                      "train",
                                      "--strategy",
                                      "multi-worker",
                                      "--model",
                                      "mlp",
                                      "--replicas",
                                      "2",
                                      "--devices",
                                      "cpu:0",
                                      "--steps",
                                      "100000000"};
    };
    StartedProgram survivor(worker("0"));
    StartedProgram killed(worker("1"));
    survivor.read_until_errors_have("workers are connected by");
    killed.signal(SIGKILL);
    EXPECT_EQ(survivor.wait(), code) << survivor.errors();
    EXPECT_EQ(count_of(survivor.errors(), "[LS-PEER-LOST]"), 1u) << survivor.errors();
  }
}

TEST(ExitStatus, HelpNamesTheCodesAfterWhichNothingIsStartedAgain) {
  const Ended help = run_to_end({LOCKSTEP_PROGRAM, "run", "--help"});
  for (const char* codes : {"exit codes 2, 126 and 127", "65 (data)", "78 (configuration)"}) {
    EXPECT_TRUE(has(help.output, codes)) << help.output;
  }
}

}  // namespace
