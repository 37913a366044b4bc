// `lockstep train --strategy multi-worker`, as `lockstep run` starts it: the results of one process, on any number of
// workers.
#include <gtest/gtest.h>

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/run_program.h"
#include "tests/tools/run_support.h"

namespace {

using lockstep::testing::run;
using lockstep::testing::text_of;

class TrainWorkers : public lockstep::testing::RunProgram {
 protected:
  /// Trains on so many workers, or in one process where `workers` is 0, and gives the report and the log of samples.
  std::pair<nlohmann::json, std::string> train(int workers, const std::string& flags) const {
    const std::string program =
        workers == 0 ? "train --strategy mirrored "
                     : "run -n " + std::to_string(workers) + " -- " LOCKSTEP_PROGRAM " train --strategy multi-worker ";
    const auto result = run(program + flags + " --json " + path("report.json") + " --sample-log " + path("samples"));
    EXPECT_EQ(result.code, 0) << result.output;
    if (result.code != 0) return {};
    return {nlohmann::json::parse(text_of(path("report.json"))), text_of(path("samples"))};
  }
};

std::vector<std::string> sorted_lines(const std::string& text) {
  auto lines = lockstep::testing::lines_of(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST_F(TrainWorkers, GiveTheDigestsTheLossAndTheSamplesOfOneProcess) {
  const std::string flags = "--model cnn --replicas 4 --devices cpu:0 --global-batch 33 --steps 6 ";
  const auto [expected, samples] = train(0, flags);
  for (const auto& [workers, engine] :
       {std::pair(1, "auto"), std::pair(2, "shared-memory"), std::pair(2, "tls"), std::pair(3, "tcp")}) {
    const auto [found, log] = train(workers, flags + "--engine " + engine);
    for (const char* key : {"replicas", "samples", "train_loss", "eval_loss", "eval_accuracy", "weights_sha256",
                            "optimizer_sha256", "state_sha256", "fingerprint"}) {
      EXPECT_EQ(found[key], expected[key]) << key << " on " << workers << " workers, engine " << engine;
    }
    EXPECT_EQ(found["workers"], workers);
    EXPECT_EQ(found["engine"], workers == 1 ? "in-process" : engine);
    EXPECT_EQ(sorted_lines(log), sorted_lines(samples));
  }
}

TEST_F(TrainWorkers, GiveTheDigestsOfOneProcessOnMnist) {
  const char* const shared = std::getenv("LOCKSTEP_SHARED_DATA");
  if (!shared || !std::filesystem::exists(std::filesystem::path(shared) / "mnist-10k"))
    GTEST_SKIP() << "LOCKSTEP_SHARED_DATA names no folder with mnist-10k in it";
  const std::string flags = "--data idx:" + (std::filesystem::path(shared) / "mnist-10k").string() +
                            " --model cnn --replicas 2 --devices cpu:0 --steps 40 ";
  const auto [expected, samples] = train(0, flags);
  for (const char* how : {"--engine shared-memory", "--engine tcp", "--engine tcp --slots sliced"}) {
    const auto [found, log] = train(2, flags + how);
    for (const char* key : {"samples", "train_loss", "eval_loss", "eval_accuracy", "weights_sha256", "optimizer_sha256",
                            "state_sha256"}) {
      EXPECT_EQ(found[key], expected[key]) << key << ", " << how;
    }
    EXPECT_EQ(sorted_lines(log), sorted_lines(samples));
  }
}

TEST_F(TrainWorkers, PrintOneTableAndOneProgress) {
  const auto result = run("run -n 3 -- " LOCKSTEP_PROGRAM
                          " train --strategy multi-worker --model mlp --replicas 3 --devices cpu:0 --steps 4");
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_EQ(lockstep::testing::count_of(result.output, "weights sha256"), 1u) << result.output;
  EXPECT_EQ(lockstep::testing::count_of(result.output, "workers are connected by"), 1u) << result.output;
  EXPECT_EQ(lockstep::testing::count_of(result.output, "epoch 1  loss "), 1u) << result.output;
}

TEST_F(TrainWorkers, AreToldThatAnEngineAndSlicedSlotsNeedThem) {
  for (const char* flag : {"--engine tls", "--slots sliced"}) {
    const auto result = run(std::string("train --steps 1 ") + flag);
    EXPECT_EQ(result.code, 2) << result.output;
    for (const char* text : {flag, "--strategy multi-worker"})
      EXPECT_NE(result.output.find(text), std::string::npos) << text << " in " << result.output;
  }
}

TEST_F(TrainWorkers, EndAllWhereOneOfThemIsAskedToStop) {
  const std::string train = std::string(LOCKSTEP_PROGRAM) + " train --strategy multi-worker --model mlp --replicas 2 " +
                            "--devices cpu:0 --steps 100000000";
  lockstep::testing::StartedProgram job(lockstep::testing::command({"-n", "2"}, "echo pid $$ >&2; exec " + train));
  job.read_until_errors_have("workers are connected by");
  job.read_until_errors_have("[1] pid ");
  const std::string& lines = job.errors();
  kill(std::stoi(lines.substr(lines.find("[1] pid ") + 8)), SIGTERM);
  EXPECT_EQ(job.wait(), 75) << job.errors();
  EXPECT_NE(job.errors().find("a worker was asked to stop; all have ended after"), std::string::npos) << job.errors();
  EXPECT_NE(lines.find("lockstep run: after a worker was asked to stop: worker "), std::string::npos) << lines;
}

TEST_F(TrainWorkers, OfOneProcessEndAfterAWholeStepWhereTheyAreAskedToStop) {
  lockstep::testing::StartedProgram program(
      {LOCKSTEP_PROGRAM, "train", "--model", "mlp", "--devices", "cpu:0", "--steps", "100000000"});
  program.read_until_errors_have("MirroredStrategy");
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 75) << program.errors();
  EXPECT_NE(program.errors().find("a worker was asked to stop; all have ended after"), std::string::npos)
      << program.errors();
}

}  // namespace
