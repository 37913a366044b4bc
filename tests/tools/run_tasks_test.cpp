// The program `lockstep run --ps`, as a user runs it: tasks of a job with parameter servers.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/tools/run_support.h"

namespace {

using lockstep::testing::command;
using lockstep::testing::count_of;
using lockstep::testing::Ended;
using lockstep::testing::has;
using lockstep::testing::kForever;
using lockstep::testing::last_line_of;
using lockstep::testing::lines_of;
using lockstep::testing::run_to_end;
using lockstep::testing::RunProgram;
using lockstep::testing::StartedProgram;
using lockstep::testing::text_of;
using lockstep::testing::variables_in;
using nlohmann::json;

/// Sets $task to "chief0", "worker1", "ps0" or "evaluator0".
const std::string kTask =
    R"sh(task=$(printf %s "$TF_CONFIG" | sed 's/.*"type":"\([a-z]*\)","index":\([0-9]*\).*/\1\2/'); )sh";

class RunTasks : public RunProgram {
 protected:
  /// Waits until somebody reads the pipe, and lets one reader go on.
  static void open_gate(const std::string& gate) {
    const int writer = open(gate.c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_EQ(write(writer, "go\n", 3), 3);
    close(writer);
  }
};

TEST_F(RunTasks, EachFindsItsRoleAndTheOthers) {
  const std::string script =
      kTask + "env -0 > " + path("env-") + "$task; exec " LOCKSTEP_PROGRAM " cluster --json > " + path("") + "$task";
  const Ended ended =
      run_to_end(command({"-n", "2", "--ps", "2", "--evaluator"}, script), [] { setenv("LOCKSTEP_PS", "7", 1); });
  EXPECT_EQ(ended.code, 0) << ended.errors;
  std::set<std::string> ports;
  std::set<std::string> chiefs;
  for (const std::string name : {"chief0", "worker0", "worker1", "ps0", "ps1", "evaluator0"}) {
    const json said = json::parse(text_of(path(name)));
    const bool is_evaluator = name == "evaluator0";
    EXPECT_EQ(said["job"].get<std::string>() + std::to_string(said["task"].get<int>()), name);
    EXPECT_EQ(said["source"], "TF_CONFIG");
    EXPECT_EQ(said["jobs"]["worker"].size(), 2u);
    EXPECT_EQ(said["jobs"]["ps"].size(), 2u);
    EXPECT_EQ(said["jobs"]["chief"].size(), 1u);
    EXPECT_EQ(said["is_chief"], name == "chief0" || is_evaluator);
    EXPECT_TRUE(said["has_secret"].get<bool>());
    EXPECT_EQ(said["disagreements"], json::array()) << name;
    if (!is_evaluator) ports.insert(said["port"].get<std::string>());
    chiefs.insert(said["jobs"]["chief"].dump());
    auto variables = variables_in(path("env-" + name));
    EXPECT_EQ(variables["LOCKSTEP_EPOCH"], "0");
    EXPECT_EQ(variables["LOCKSTEP_RESTART_COUNT"], "0");
    EXPECT_EQ(variables.contains("LOCKSTEP_END_NOTICE"), is_evaluator);
    for (const char* other : {"RANK", "WORLD_SIZE", "LOCKSTEP_NUM_WORKERS", "LOCKSTEP_PS", "MASTER_PORT"}) {
      EXPECT_FALSE(variables.contains(other)) << other;
    }
  }
  EXPECT_EQ(ports.size(), 5u) << "a port for each";
  EXPECT_EQ(chiefs.size(), 1u);
}

TEST_F(RunTasks, LinesBeginWithTheTasksName) {
  const Ended ended = run_to_end(command({"-n", "2", "--ps", "1", "--evaluator"}, "echo here"));
  EXPECT_EQ(ended.code, 0) << ended.errors;
  const auto lines = lines_of(ended.output);
  EXPECT_EQ(
      std::set<std::string>(lines.begin(), lines.end()),
      (std::set<std::string>{"[chief] here", "[worker 0] here", "[worker 1] here", "[ps 0] here", "[evaluator] here"}));
}

TEST_F(RunTasks, OnlyTheChiefReadsStandardInput) {
  std::ofstream(path("input")) << "hello\n";
  const auto prepare = [&] { dup2(open(path("input").c_str(), O_RDONLY), STDIN_FILENO); };
  EXPECT_EQ(run_to_end(command({"-n", "2", "--ps", "1"}, "cat"), prepare).output, "[chief] hello\n");
}

TEST_F(RunTasks, TheJobEndsWithTheChiefAndWhoStaysIsNamed) {
  const std::string script =
      kTask + "case $task in chief0) exit 0;; ps0) trap '' TERM; tail -f /dev/null & wait; wait;; esac; " + kForever;
  StartedProgram program(command({"-n", "2", "--ps", "1", "--grace", "0.2"}, script));
  EXPECT_EQ(program.wait(), 0) << program.errors();
  EXPECT_TRUE(has(program.errors(), "worker 0, worker 1 and ps 0 did not end with the chief, within --grace, 0.2 s"))
      << program.errors();
  EXPECT_TRUE(has(program.errors(), "ps 0 did not end within --grace, 0.2 s: SIGKILL")) << program.errors();
  EXPECT_TRUE(program.is_nobody_left());
}

TEST_F(RunTasks, TasksThatEndWithTheChiefEndQuietly) {
  const Ended ended = run_to_end(command({"-n", "1", "--ps", "1"}, "exit 0"));
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.errors, "");
}

TEST_F(RunTasks, TheExitCodeIsTheChiefs) {
  const std::string script = kTask + "[ $task = chief0 ] && exit 42; " + kForever;
  const Ended ended = run_to_end(command({"-n", "2", "--ps", "1"}, script));
  EXPECT_EQ(ended.code, 42);
  EXPECT_TRUE(has(last_line_of(ended.errors), "first failure: chief (pid ")) << ended.errors;
  EXPECT_TRUE(has(last_line_of(ended.errors), "3 others stopped")) << ended.errors;
}

TEST_F(RunTasks, AWorkerThatDiesIsStartedAgainAlone) {
  // Worker 1 dies twice. The chief ends when its third process tells it so.
  const std::string gate = fifo("gate");
  const std::string script =
      kTask + "echo started $$ $LOCKSTEP_RESTART_COUNT $LOCKSTEP_EPOCH; case $task in chief0) read line < " + gate +
      "; exit 0;; worker1) [ $LOCKSTEP_RESTART_COUNT = 2 ] || kill -9 $$; echo > " + gate + ";; esac; " + kForever;
  StartedProgram program(command({"-n", "2", "--ps", "1", "--max-restarts", "2", "--restart-pause", "0.05", "--grace",
                                  "0.1", "--json", path("report")},
                                 script));
  EXPECT_EQ(program.wait(), 0) << program.errors();
  EXPECT_EQ(count_of(program.output(), "[worker 1] started"), 3u) << program.output();
  for (const char* other : {"[worker 0] started", "[ps 0] started", "[chief] started"}) {
    EXPECT_EQ(count_of(program.output(), other), 1u) << other;
  }
  EXPECT_TRUE(has(program.errors(), "worker 1 (pid ")) << program.errors();
  EXPECT_TRUE(has(program.errors(), "starting it again alone in 0.05 s, restart 1 of 2")) << program.errors();
  EXPECT_TRUE(has(program.errors(), "starting it again alone in 0.1 s, restart 2 of 2")) << program.errors();
  EXPECT_TRUE(program.is_nobody_left());
  const json report = json::parse(text_of(path("report")));
  EXPECT_EQ(report["restarts"], 2);
  EXPECT_EQ(report["servers"], 1);
  EXPECT_EQ(report["num_workers"], 2);
  ASSERT_EQ(report["attempts"].size(), 1u);
  std::map<std::string, int> ends;
  for (const json& end : report["attempts"][0]["workers"]) ++ends[end["task"].get<std::string>()];
  EXPECT_EQ(ends, (std::map<std::string, int>{{"chief", 1}, {"worker 0", 1}, {"worker 1", 3}, {"ps 0", 1}}));
}

TEST_F(RunTasks, WithoutARestartTheOthersGoOnUntilNoWorkerIsLeft) {
  const std::string gate = fifo("gate");
  const std::string script =
      kTask + "case $task in worker0) exit 7;; worker1) read line < " + gate + "; exit 8;; esac; " + kForever;
  StartedProgram program(command({"-n", "2", "--ps", "1"}, script));
  program.read_until_errors_have("no restart is left, and the others go on without it");
  open_gate(gate);
  EXPECT_EQ(program.wait(), 8) << program.errors();
  EXPECT_TRUE(has(last_line_of(program.errors()), "first failure: worker 1 ")) << program.errors();
}

TEST_F(RunTasks, AWorkerWhoseConfigurationIsWrongEndsTheJob) {
  const std::string script = kTask + "[ $task = worker0 ] && exit 78; " + kForever;
  const Ended ended = run_to_end(command({"-n", "2", "--ps", "1", "--max-restarts", "9"}, script));
  EXPECT_EQ(ended.code, 78);
  EXPECT_TRUE(has(last_line_of(ended.errors), "worker 0 ")) << ended.errors;
}

TEST_F(RunTasks, AServerThatDiesIsNamedAndAllStartAgain) {
  // The workers and the chief, which lose it, end first.
  const std::string own = path("pipe");
  const std::string script = kTask +
                             "echo epoch $LOCKSTEP_EPOCH $LOCKSTEP_RESTART_COUNT; [ $LOCKSTEP_EPOCH = 1 ] && exit 0; "
                             "if [ $task = ps0 ]; then exec 5> " +
                             fifo("pipechief0") + " 6> " + fifo("pipeworker0") + "; kill -9 $$; fi; read line < " +
                             own + "$task; echo lost it >&2; exit 75";
  const Ended ended = run_to_end(
      command({"-n", "1", "--ps", "1", "--max-restarts", "1", "--restart-pause", "1", "--grace", "1"}, script));
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_TRUE(has(ended.errors, "first failure: ps 0 (pid ")) << ended.errors;
  EXPECT_TRUE(has(ended.errors, "starting all again in 1 s, restart 1 of 1")) << ended.errors;
  for (const char* name : {"chief", "worker 0", "ps 0"}) {
    for (const char* words : {"] epoch 0 0", "] epoch 1 1"}) {
      EXPECT_EQ(count_of(ended.output, std::string("[") + name + words), 1u) << ended.output;
    }
  }
}

TEST_F(RunTasks, ADyingServerIsNamedWithoutARestartToo) {
  const std::string script = kTask + "[ $task = ps1 ] && kill -9 $$; " + kForever;
  const Ended ended = run_to_end(command({"-n", "1", "--ps", "2", "--grace", "0.1"}, script));
  EXPECT_EQ(ended.code, 128 + SIGKILL);
  EXPECT_TRUE(has(last_line_of(ended.errors), "first failure: ps 1 ")) << ended.errors;
}

TEST_F(RunTasks, RestartsOfOneAndOfAllAreCountedTogether) {
  // Worker 0 dies once; then the chief fails, and one restart is left; then it fails again.
  const std::string gate = fifo("gate");
  const std::string script =
      kTask + "case $task in chief0) [ $LOCKSTEP_EPOCH = 0 ] && read line < " + gate +
      "; exit 1;; worker0) [ $LOCKSTEP_RESTART_COUNT = 0 ] && exit 1; [ $LOCKSTEP_EPOCH = 0 ] && "
      "echo > " +
      gate + ";; esac; " + kForever;
  const Ended ended = run_to_end(
      command({"-n", "1", "--ps", "1", "--max-restarts", "2", "--restart-pause", "0.05", "--grace", "0.1"}, script));
  EXPECT_EQ(ended.code, 1) << ended.errors;
  EXPECT_TRUE(has(ended.errors, "starting it again alone in 0.05 s, restart 1 of 2")) << ended.errors;
  EXPECT_TRUE(has(ended.errors, "starting all again in 0.05 s, restart 2 of 2")) << ended.errors;
}

TEST_F(RunTasks, TheEvaluatorIsToldOfTheEndAndWaitedFor) {
  const std::string gate = fifo("gate");
  const std::string script = kTask +
                             "[ $task = evaluator0 ] || exit 0; cat <&${LOCKSTEP_END_NOTICE%:*}; echo told; "
                             "read line < " +
                             gate + "; echo read the last";
  StartedProgram program(
      {LOCKSTEP_PROGRAM, "run", "-n", "1", "--ps", "1", "--evaluator", "--grace", "0", "--", "bash", "-c", script});
  program.read_until_output_has("[evaluator] told");
  open_gate(gate);
  EXPECT_EQ(program.wait(), 0) << program.errors();
  EXPECT_TRUE(has(program.output(), "[evaluator] read the last")) << program.errors();
}

TEST_F(RunTasks, AnEvaluatorThatFailsTakesNobodyWithIt) {
  const std::string gate = fifo("gate");
  const std::string script =
      kTask + "case $task in evaluator0) exit 5;; chief0) read line < " + gate + ";; esac; exit 0";
  StartedProgram program(command({"-n", "1", "--ps", "1", "--evaluator"}, script));
  program.read_until_errors_have("evaluator (pid ");
  open_gate(gate);
  EXPECT_EQ(program.wait(), 0) << program.errors();
  EXPECT_TRUE(has(program.errors(), "exited with code 5")) << program.errors();
}

TEST_F(RunTasks, AJobThatWasAskedToEndGivesTheChiefsCode) {
  const std::string gate = fifo("gate");
  const std::string script =
      kTask + "trap 'if [ $task = chief0 ]; then read line < " + gate +
      "; echo saved; exit 75; fi; exit 0' TERM; tail -f /dev/null & echo ready; while :; do wait; done";
  StartedProgram program(command({"-n", "1", "--ps", "1", "--max-restarts", "3", "--grace", "0.1"}, script));
  program.read_until([&] { return count_of(program.output(), "ready") == 3; });
  program.signal(SIGTERM);
  open_gate(gate);
  EXPECT_EQ(program.wait(), 75) << program.errors();
  EXPECT_TRUE(has(program.output(), "[chief] saved")) << program.errors();
  EXPECT_TRUE(has(last_line_of(program.errors()), "after SIGTERM: chief ")) << program.errors();
  EXPECT_FALSE(has(program.errors(), "again")) << program.errors();
}

TEST_F(RunTasks, LaunchersOfSeveralHostsStartTheirSharesOfOneJob) {
  std::ofstream(path("hosts")) << "127.0.0.1:2\n127.0.0.2:3\n";
  const std::string script = kTask + "printf '%s' \"$TF_CONFIG\" | sed 's/,\"task.*//' > " + path("") + "$task";
  const auto prepare = [] { setenv("LOCKSTEP_SECRET", "correct horse battery", 1); };
  const auto on_host = [&](const char* index) {
    return run_to_end(
        command({"-n", "2", "--ps", "2", "--hosts", path("hosts"), "--host-index", index, "--port", "4000"}, script),
        prepare);
  };
  for (const char* host : {"0", "1"}) EXPECT_EQ(on_host(host).code, 0);
  const json expected = {{"cluster",
                          {{"chief", {"127.0.0.1:4000"}},
                           {"worker", {"127.0.0.1:4001", "127.0.0.2:4000"}},
                           {"ps", {"127.0.0.2:4001", "127.0.0.2:4002"}}}}};
  for (const char* task : {"chief0", "worker0", "worker1", "ps0", "ps1"}) {
    EXPECT_EQ(json::parse(text_of(path(task)) + "}"), expected) << task;
  }
}

TEST_F(RunTasks, BadFlagsAreRefused) {
  const auto expect_refused = [](std::vector<std::string> words, const std::string& part) {
    words.insert(words.begin(), {LOCKSTEP_PROGRAM, "run"});
    const Ended ended = run_to_end(words);
    EXPECT_EQ(ended.code, 2) << ended.errors;
    EXPECT_TRUE(has(ended.errors, part)) << ended.errors;
  };
  expect_refused({"--ps", "1", "true"}, "-n");
  expect_refused({"-n", "1", "--ps", "0", "true"}, "--ps");
  expect_refused({"-n", "1", "--evaluator", "true"}, "--ps");
  expect_refused({"-n", "1024", "--ps", "1024", "true"}, "tasks");
  expect_refused({"-n", "2", "--ps", "2", "--port", "65533", "true"}, "--port at most 65531");
}

}  // namespace
