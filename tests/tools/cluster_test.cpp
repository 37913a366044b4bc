// The program `lockstep cluster`, as a user runs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/free_port.h"
#include "tests/support/run_program.h"

namespace {

using lockstep::testing::Result;
using lockstep::testing::run_program;

/// Runs it with these variables, NAME=value each, and none of those of the launcher that may have started this test.
Result run_with(const std::string& variables, const std::string& flags = "") {
  return run_program("env -i PATH=/usr/bin:/bin TSAN_OPTIONS=\"$TSAN_OPTIONS\" ASAN_OPTIONS=\"$ASAN_OPTIONS\" " +
                         variables + " " LOCKSTEP_PROGRAM,
                     "cluster " + flags);
}

/// The JSON object beside what goes to the log.
nlohmann::json json_in(const std::string& output) {
  const std::size_t begin = std::min(output.find('{'), output.size());
  return nlohmann::json::parse(output.substr(begin, output.rfind('}') + 1 - begin));
}

const std::string kTorchrun = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 ";

TEST(ClusterCommand, ShowsAProcessThatIsAlone) {
  const Result result = run_with("");
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_NE(result.output.find("alone"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("0 of 1"), std::string::npos) << result.output;
}

TEST(ClusterCommand, ShowsWhoSaysWhatAsJson) {
  const Result result = run_with(kTorchrun, "--json");
  ASSERT_EQ(result.code, 0) << result.output;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["source"], "torchrun");
  EXPECT_EQ(json["num_workers"], 2);
  EXPECT_EQ(json["worker_index"], 1);
  EXPECT_EQ(json["is_chief"], false);
  EXPECT_EQ(json["chief_address"], "127.0.0.1:29500");
  EXPECT_EQ(json["local_worker"], 1);
  EXPECT_EQ(json["address"], "127.0.0.1");
  EXPECT_EQ(json["has_secret"], false);
  EXPECT_TRUE(json["disagreements"].empty());
  EXPECT_TRUE(json["findings"].empty());
}

TEST(ClusterCommand, DisagreementsAreFindings) {
  const Result result =
      run_with(kTorchrun + "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=127.0.0.1", "--json");
  ASSERT_EQ(result.code, 1) << result.output;
  EXPECT_EQ(nlohmann::json::parse(result.output)["disagreements"].size(), 2u) << result.output;
  const Result text = run_with(kTorchrun + "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=127.0.0.1");
  EXPECT_EQ(text.code, 1);
  EXPECT_NE(text.output.find("SLURM_STEP_NUM_TASKS=4"), std::string::npos) << text.output;
}

TEST(ClusterCommand, ShowsWhoSaysWhatWhereTheChiefsHostCannotBeLookedUp) {
  const std::string variables = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=nowhere.invalid MASTER_PORT=29500 ";
  const Result text = run_with(variables);
  EXPECT_EQ(text.code, 3) << text.output;
  EXPECT_NE(text.output.find("torchrun"), std::string::npos) << text.output;
  EXPECT_NE(text.output.find("1 of 2"), std::string::npos) << text.output;
  EXPECT_NE(text.output.find("LS-CLUSTER-LOOK-UP"), std::string::npos) << text.output;
  const Result result = run_with(variables, "--json");
  EXPECT_EQ(result.code, 3) << result.output;
  EXPECT_EQ(json_in(result.output)["chief_address"], "nowhere.invalid:29500") << result.output;
  EXPECT_EQ(json_in(result.output)["address"], "") << result.output;
}

TEST(ClusterCommand, AMalformedVariableIsOneLineAndAWrongEnvironment) {
  const Result result = run_with("LOCKSTEP_NUM_WORKERS=four");
  EXPECT_EQ(result.code, 3) << result.output;
  EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
  EXPECT_NE(result.output.find("LOCKSTEP_NUM_WORKERS is 'four'"), std::string::npos) << result.output;
}

TEST(ClusterCommand, SaysWhereOneTaskIsAloneInAnAllocationOfSeveralHosts) {
  const Result result = run_with(
      "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NODELIST=localhost "
      "SLURM_JOB_NUM_NODES=4");
  EXPECT_EQ(result.code, 1) << result.output;
  EXPECT_NE(result.output.find("SLURM_JOB_NUM_NODES=4"), std::string::npos) << result.output;
}

TEST(ClusterCommand, NeverPrintsTheSecret) {
  for (const char* flags : {"", "--json"}) {
    const Result result = run_with("LOCKSTEP_SECRET=hush-hush-hush-hush", flags);
    EXPECT_EQ(result.code, 0) << result.output;
    EXPECT_EQ(result.output.find("hush"), std::string::npos) << result.output;
  }
}

TEST(ClusterCommand, ChecksThatAllWorkersOfAJobReachEachOther) {
  for (const std::string engine : {"auto", "tls"}) {
    const Result result =
        run_program(LOCKSTEP_PROGRAM, "run -n 3 -- " LOCKSTEP_PROGRAM " cluster --check --engine " + engine);
    EXPECT_EQ(result.code, 0) << result.output;
    for (const char* worker : {"0", "1", "2"}) {
      const std::string words = std::string("worker ") + worker + ": reached, process ";
      EXPECT_NE(result.output.find(words), std::string::npos) << result.output;
    }
    EXPECT_NE(result.output.find(engine == "tls" ? "connected by tls:" : "connected by shared-memory:"),
              std::string::npos)
        << result.output;
  }
}

TEST(ClusterCommand, SaysOfEachWorkerWhatIsKnownWhereTheChiefCannotBeReached) {
  const std::string job = "LOCKSTEP_NUM_WORKERS=3 LOCKSTEP_WORKER_INDEX=1 LOCKSTEP_CHIEF_ADDRESS=127.0.0.1:9";
  const Result result = run_with(job, "--check --engine tls --within 1");
  EXPECT_EQ(result.code, 3) << result.output;
  for (const char* words : {"worker 0: missing, 127.0.0.1, port 9: Connection refused\n", "worker 1: reached\n",
                            "worker 2: unknown\n", "worker 1 of 3 has waited 1 s for worker 0"}) {
    EXPECT_NE(result.output.find(words), std::string::npos) << words << "\n" << result.output;
  }
  const Result json = run_with(job, "--check --json --engine tls --within 1");
  EXPECT_EQ(json.code, 3) << json.output;
  const nlohmann::json check = json_in(json.output).at("check");
  EXPECT_EQ(check.at("reached_all"), false);
  EXPECT_NE(check.at("error").get<std::string>().find("[LS-CLUSTER-JOIN]"), std::string::npos);
  EXPECT_EQ(check.at("workers"), nlohmann::json::parse(R"([
    {"state": "missing", "seen": "127.0.0.1, port 9: Connection refused"}, {"state": "reached"}, {"state": "unknown"}])"));
}

TEST(ClusterCommand, SaysOfEachWorkerWhatIsKnownWhereOneOfThemDoesNotCome) {
  // Workers 0 and 1 come; worker 2 is expected where nobody listens.
  for (const std::string engine : {"tls", "shared-memory"}) {
    const std::string config = R"({"cluster": {"worker": ["127.0.0.1:)" +
                               std::to_string(lockstep::testing::free_port()) + R"(", "127.0.0.1:)" +
                               std::to_string(lockstep::testing::free_port()) +
                               R"(", "127.0.0.1:9"]}, "task": {"type": "worker", "index": )";
    const auto check = [&](int worker) {
      return run_with("TF_CONFIG='" + config + std::to_string(worker) + "}}'",
                      "--check --json --within 5 --engine " + engine);
    };
    auto other = std::async(std::launch::async, check, 1);
    const std::string seen = engine == "tls" ? "127.0.0.1:9, Connection refused" : "";
    for (const Result& result : {check(0), other.get()}) {
      EXPECT_EQ(result.code, 3) << result.output;
      const nlohmann::json workers = json_in(result.output).at("check").at("workers");
      EXPECT_EQ(workers, nlohmann::json::array(
                             {{{"state", "reached"}}, {{"state", "reached"}}, {{"state", "missing"}, {"seen", seen}}}))
          << result.output;
    }
  }
}

TEST(ClusterCommand, SaysOfAWorkerThatIsRefusedThatItIsHereAndWhatWorker0Said) {
  for (const std::string engine : {"tls", "shared-memory"}) {
    const std::string chief = "LOCKSTEP_CHIEF_ADDRESS=127.0.0.1:" + std::to_string(lockstep::testing::free_port());
    const auto check = [&](const std::string& variables, const std::string& seconds) {
      return run_with(chief + " " + variables, "--check --json --within " + seconds + " --engine " + engine);
    };
    // Worker 1 is refused as soon as it has come; worker 0 waits in vain.
    auto of_two = std::async(std::launch::async, check, "LOCKSTEP_NUM_WORKERS=2 LOCKSTEP_WORKER_INDEX=0", "10");
    const Result of_three = check("LOCKSTEP_NUM_WORKERS=3 LOCKSTEP_WORKER_INDEX=1", "60");
    EXPECT_EQ(of_three.code, 3) << of_three.output;
    const nlohmann::json workers = json_in(of_three.output).at("check").at("workers");
    ASSERT_EQ(workers.size(), 3u) << of_three.output;
    EXPECT_EQ(workers[0].at("state"), "missing") << of_three.output;
    const std::string seen = workers[0].value("seen", "");
    EXPECT_NE(seen.find("[LS-CLUSTER-DIFFERS]"), std::string::npos) << of_three.output;
    EXPECT_EQ(seen.find('\n'), std::string::npos) << of_three.output;
    EXPECT_EQ(workers[1], nlohmann::json({{"state", "reached"}})) << of_three.output;
    EXPECT_EQ(workers[2], nlohmann::json({{"state", "unknown"}})) << of_three.output;
    EXPECT_EQ(json_in(of_two.get().output).at("check").at("workers")[0].at("state"), "reached");
  }
}

TEST(ClusterCommand, FindsThatTheChiefIsOnAnotherHostAndThatThereIsNoSecret) {
  const std::string job = "LOCKSTEP_NUM_WORKERS=2 LOCKSTEP_WORKER_INDEX=1 LOCKSTEP_CHIEF_ADDRESS=198.51.100.7:4000 ";
  const Result without = run_with(job, "--check --json");
  const nlohmann::json json = json_in(without.output);
  if (json.at("address") == "") GTEST_SKIP() << "this machine has no route to another host: " << without.output;
  ASSERT_EQ(json.at("findings").size(), 1u) << without.output;
  EXPECT_NE(json.at("findings")[0].get<std::string>().find("198.51.100.7:4000, is on another host"), std::string::npos);
  EXPECT_EQ(without.code, 3) << "joining fails: " << without.output;
  EXPECT_EQ(json.at("check").at("workers"), nlohmann::json::parse(R"([{"state": "unknown"}, {"state": "reached"}])"));
  EXPECT_EQ(run_with(job).code, 1) << "a finding";
  const Result with = run_with(job + "LOCKSTEP_SECRET=hush-hush-hush-hush");
  EXPECT_EQ(with.code, 0) << with.output;
}

TEST(ClusterCommand, RefusesFlagsThatItDoesNotHave) { EXPECT_EQ(run_with("", "--chek").code, 2); }

}  // namespace
