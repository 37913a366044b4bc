// The program `lockstep run`, as a user runs it: how a job ends, is started again, and that nobody is left.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

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

class RunEnd : public RunProgram {};

TEST_F(RunEnd, TheFirstFailureIsNamedLastAndNoFollower) {
  // The others fail as well, but only once they are stopped.
  const std::string gate = fifo("gate");
  const std::string script = "if [ $RANK = 1 ]; then for i in 0 2 3; do read line; done < " + gate +
                             "; for i in $(seq 30); do echo error $i >&2; done; exit 7; fi; "
                             "trap 'echo follower >&2; exit 9' TERM; tail -f /dev/null & echo > " +
                             gate + "; wait";
  // Held open here, so that the first line is not taken for all.
  const int held = open(gate.c_str(), O_RDWR | O_CLOEXEC);
  const Ended ended = run_to_end(command({"-n", "4"}, script));
  close(held);
  EXPECT_EQ(ended.code, 7);
  const auto lines = lines_of(ended.errors);
  ASSERT_GT(lines.size(), 21u);
  EXPECT_TRUE(has(lines.back(), "worker 1 (pid ")) << ended.errors;
  EXPECT_TRUE(has(lines.back(), "code 7")) << lines.back();
  EXPECT_TRUE(has(lines.back(), "3 others stopped, 3 of them by a later failure")) << lines.back();
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(lines[lines.size() - 21 + i], "[1] error " + std::to_string(11 + i));
  }
}

TEST_F(RunEnd, AKilledWorkerIsNamedAndNotThoseThatSeeItsConnectionsClose) {
  // Worker 2 holds the writing ends of the others' pipes; they read until these close, and fail then.
  const std::string own = path("pipe");
  const std::string script = "if [ $RANK = 2 ]; then exec 5> " + fifo("pipe0") + " 6> " + fifo("pipe1") +
                             "; kill -9 $$; fi; read line < " + own + "$RANK; exit 4";
  for (int i = 0; i < 5; ++i) {
    const Ended ended = run_to_end(command({"-n", "3"}, script));
    EXPECT_EQ(ended.code, 128 + SIGKILL) << ended.errors;
    EXPECT_TRUE(has(last_line_of(ended.errors), "worker 2 ")) << ended.errors;
  }
}

TEST_F(RunEnd, TheExitCodeIsThatOfTheFirstFailure) {
  EXPECT_EQ(run_to_end(command({"-n", "2"}, "exit 0")).code, 0);
  EXPECT_EQ(run_to_end(command({"-n", "2"}, "[ $RANK = 1 ] || exit 42; tail -f /dev/null")).code, 42);
  const Ended killed = run_to_end(command({"-n", "2"}, "[ $RANK = 1 ] || kill -9 $$; tail -f /dev/null"));
  EXPECT_EQ(killed.code, 128 + SIGKILL);
  EXPECT_TRUE(has(last_line_of(killed.errors), "SIGKILL")) << killed.errors;
  EXPECT_TRUE(has(last_line_of(killed.errors), "out-of-memory")) << killed.errors;
  EXPECT_EQ(run_to_end(command({"-n", "1"}, "kill -SEGV $$")).code, 128 + SIGSEGV);
}

TEST_F(RunEnd, TheErrorOfAWorkerCountsAlsoWhereOneThatLostItEndsBefore) {
  const std::string gate = fifo("gate");
  const std::string script = "if [ $RANK = 0 ]; then read line < " + gate +
                             "; exit 75; fi; trap 'echo wrong data >&2; exit 65' TERM; tail -f /dev/null & echo > " +
                             gate + "; wait";
  const Ended ended = run_to_end(command({"-n", "2", "--max-restarts", "3"}, script));
  EXPECT_EQ(ended.code, 65) << "not 75, after which the job would be started again";
  EXPECT_TRUE(has(last_line_of(ended.errors), "worker 1 ")) << ended.errors;
  EXPECT_TRUE(has(ended.errors, "[1] wrong data")) << ended.errors;
}

TEST_F(RunEnd, TheErrorOfAWorkerThatNobodyHasToStopCountsWhereThoseThatLostItEndBefore) {
  // Workers 0 and 2 end first. Worker 1, which has failed, does not catch SIGTERM, and ends once the launcher has seen
  // their ends.
  const std::string gate = fifo("gate");
  for (const char* code : {"65", "70", "1"}) {
    const std::string script = "[ $RANK = 1 ] || exit 75; read line < " + gate + "; echo bug >&2; exit " + code;
    StartedProgram program(command({"-n", "3"}, script));
    program.read_until([&] { return count_of(program.errors(), "exited with code 75") == 1; });
    const int writer = open(gate.c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_EQ(write(writer, "go\n", 3), 3);
    close(writer);
    EXPECT_EQ(std::to_string(program.wait()), code);
    EXPECT_TRUE(has(last_line_of(program.errors()), "worker 1 ")) << program.errors();
    EXPECT_TRUE(has(program.errors(), "lockstep run: what worker 1 wrote")) << program.errors();
  }
}

TEST_F(RunEnd, SurvivorsOfAKillSayWhatTheySawBeforeTheyAreStopped) {
  // They do not catch SIGTERM, and speak once the launcher has seen the kill.
  const std::string gate = fifo("gate");
  const std::string script = "[ $RANK = 1 ] && kill -9 $$; read line < " + gate + "$RANK; echo lost it >&2; exit 75";
  const std::string gates[] = {fifo("gate0"), fifo("gate2")};
  StartedProgram program(command({"-n", "3"}, script));
  program.read_until_errors_have("was killed by SIGKILL");
  for (const std::string& one : gates) {
    const int writer = open(one.c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_EQ(write(writer, "go\n", 3), 3);
    close(writer);
  }
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  for (const char* words : {"[0] lost it", "[2] lost it"}) EXPECT_TRUE(has(program.errors(), words)) << words;
  EXPECT_TRUE(has(last_line_of(program.errors()), "worker 1 ")) << program.errors();
}

TEST_F(RunEnd, AWorkerThatEndsAsItWasAskedToTakesNobodyWithIt) {
  // Worker 0 ends at once, and worker 1 saves for longer than the grace.
  const std::string gate = fifo("gate");
  const std::string script = "trap 'if [ $RANK = 0 ]; then exit 75; fi; read line < " + gate +
                             "; echo saved; exit 75' TERM; tail -f /dev/null & echo ready; while :; do wait; done";
  StartedProgram program(command({"-n", "2", "--grace", "0", "--json", path("report")}, script));
  program.read_until([&] { return count_of(program.output(), "ready") == 2; });
  program.signal(SIGTERM);
  program.read_until_errors_have("worker 0 ");
  const int writer = open(gate.c_str(), O_WRONLY | O_CLOEXEC);  // waits for worker 1
  EXPECT_EQ(write(writer, "go\n", 3), 3);
  close(writer);
  EXPECT_EQ(program.wait(), 75);
  EXPECT_TRUE(has(program.output(), "[1] saved")) << program.output() << program.errors();
  EXPECT_FALSE(has(program.errors(), "SIGKILL")) << program.errors();
}

TEST_F(RunEnd, AWorkerThatSomebodyElseAskedToStopTakesNobodyWithIt) {
  // Worker 0 says that it was asked, as core/process/stop_request.cpp does, and ends at once. Worker 1, which stops
  // with it, saves for longer than the grace.
  const std::string gate = fifo("gate");
  const std::string script =
      "if [ $RANK = 0 ]; then bash -c 'echo asked >&${LOCKSTEP_STOP_SOCKET%:*}'; exit 75; fi; read line < " + gate +
      "; echo saved; exit 75";
  StartedProgram program(command({"-n", "2", "--grace", "0"}, script));
  program.read_until_errors_have("exited with code 75, ");
  program.read_until_errors_have("as a worker was asked to stop; 1 other may go on");
  const int writer = open(gate.c_str(), O_WRONLY | O_CLOEXEC);  // waits for worker 1
  EXPECT_EQ(write(writer, "go\n", 3), 3);
  close(writer);
  EXPECT_EQ(program.wait(), 75);
  EXPECT_TRUE(has(program.output(), "[1] saved")) << program.output() << program.errors();
  EXPECT_FALSE(has(program.errors(), "SIGKILL")) << program.errors();
  EXPECT_TRUE(has(last_line_of(program.errors()), "after a worker was asked to stop: worker 0 ")) << program.errors();
}

TEST_F(RunEnd, AWorkerThatFailsAfterOneWasAskedToStopIsTheFirstFailure) {
  const std::string script =
      "if [ $RANK = 0 ]; then bash -c 'echo asked >&${LOCKSTEP_STOP_SOCKET%:*}'; exit 75; fi; echo full >&2; exit 65";
  const Ended ended = run_to_end(command({"-n", "2", "--max-restarts", "3"}, script));
  EXPECT_EQ(ended.code, 65);
  EXPECT_TRUE(has(last_line_of(ended.errors), "first failure: worker 1 ")) << ended.errors;
}

TEST_F(RunEnd, AFailureAfterAStopStillEndsTheOthersAndNamesTheFlag) {
  const std::string script =
      "trap 'if [ $RANK = 0 ]; then exit 70; fi' TERM; tail -f /dev/null & echo ready; while :; do wait; done";
  StartedProgram program(command({"-n", "2", "--grace", "0.1"}, script));
  program.read_until([&] { return count_of(program.output(), "ready") == 2; });
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 70);
  EXPECT_TRUE(has(program.errors(), "1 worker did not end within --grace, 0.1 s: SIGKILL")) << program.errors();
}

TEST_F(RunEnd, AProgramThatCannotBeStartedIsNamed) {
  const Ended missing = run_to_end({LOCKSTEP_PROGRAM, "run", "-n", "2", "--max-restarts", "9", "./nowhere"});
  EXPECT_EQ(missing.code, 127);
  EXPECT_TRUE(has(last_line_of(missing.errors), "there is no file './nowhere': build")) << missing.errors;
  const Ended unknown = run_to_end({LOCKSTEP_PROGRAM, "run", "-n", "2", "lockstep-no-such-program"});
  EXPECT_EQ(unknown.code, 127);
  EXPECT_TRUE(has(last_line_of(unknown.errors), "as ./lockstep-no-such-program")) << unknown.errors;
  std::ofstream(path("plain")) << "x";
  const Ended plain = run_to_end({LOCKSTEP_PROGRAM, "run", "-n", "1", path("plain")});
  EXPECT_EQ(plain.code, 126);
  EXPECT_TRUE(has(last_line_of(plain.errors), "chmod +x")) << plain.errors;
}

TEST_F(RunEnd, AWorkerThatEndsWellBeforeTheOthersIsNoFailure) {
  const std::string gate = fifo("gate");
  const std::string script = "[ $RANK = 0 ] && exit; read line < " + gate + "; echo went on";
  StartedProgram program(command({"-n", "2"}, script));
  const int writer = open(gate.c_str(), O_WRONLY | O_CLOEXEC);  // waits for worker 1
  EXPECT_EQ(write(writer, "go\n", 3), 3);
  close(writer);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), "[1] went on\n");
  EXPECT_EQ(program.errors(), "");
}

TEST_F(RunEnd, AWorkerThatDoesNotListenIsKilledAfterTheGrace) {
  const std::string gate = fifo("gate");
  const std::string script = "if [ $RANK = 1 ]; then read line < " + gate + "; exit 5; fi; trap '' TERM; echo > " +
                             gate + "; tail -f /dev/null";
  StartedProgram program(command({"-n", "2", "--grace", "0.1"}, script));
  EXPECT_EQ(program.wait(), 5);
  EXPECT_TRUE(has(last_line_of(program.errors()), "1 other stopped")) << program.errors();
  EXPECT_TRUE(program.is_nobody_left());
}

TEST_F(RunEnd, SignalsReachAllWorkers) {
  const std::string script =
      "trap 'echo got it; exit $((3 + RANK))' INT; trap 'echo used' USR1; tail -f /dev/null & "
      "echo ready; while :; do wait; done";
  StartedProgram program(command({"-n", "2"}, script));
  program.read_until([&] { return count_of(program.output(), "ready") == 2; });
  program.signal(SIGUSR1);
  program.read_until([&] { return count_of(program.output(), "used") == 2; });
  program.signal(SIGINT);
  const int code = program.wait();
  EXPECT_TRUE(code == 3 || code == 4) << code;
  EXPECT_EQ(count_of(program.output(), "got it"), 2u);
  EXPECT_TRUE(program.is_nobody_left());
}

TEST_F(RunEnd, WorkersThatDieOfTheSignalGiveItsCode) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    StartedProgram program(command({"-n", "2", "--max-restarts", "3"}, std::string("echo ready; ") + kForever));
    program.read_until([&] { return count_of(program.output(), "ready") == 2; });
    program.signal(signal);
    EXPECT_EQ(program.wait(), 128 + signal);
    EXPECT_FALSE(has(program.errors(), "starting all again")) << program.errors();
  }
}

TEST_F(RunEnd, ASecondSignalKillsAtOnce) {
  StartedProgram program(command({"-n", "2", "--grace", "1000"}, "trap '' INT TERM; echo ready; tail -f /dev/null"));
  program.read_until([&] { return count_of(program.output(), "ready") == 2; });
  program.signal(SIGINT);
  program.read_until_errors_have("SIGINT goes to all workers");
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 128 + SIGINT);
  EXPECT_TRUE(program.is_nobody_left());
}

TEST_F(RunEnd, NobodyIsLeftWhenTheLauncherIsKilled) {
  StartedProgram program(command({"-n", "3"}, "trap '' TERM HUP; tail -f /dev/null & echo ready; wait"));
  program.read_until([&] { return count_of(program.output(), "ready") == 3; });
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait_unread(), -SIGKILL);
  EXPECT_TRUE(program.is_nobody_left());
}

TEST_F(RunEnd, WhatWorkersLeaveBehindIsKilled) {
  const std::string script = "trap '' TERM; tail -f /dev/null & (setsid tail -f /dev/null &); exit 0";
  StartedProgram program(command({"-n", "2"}, script));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_TRUE(program.is_nobody_left());
}

TEST_F(RunEnd, AStoppedWorkerIsKilledWithTheOthers) {
  StartedProgram program(command({"-n", "2", "--grace", "0.1"}, "[ $RANK = 0 ] && kill -STOP $$; exit 6"));
  EXPECT_EQ(program.wait(), 6);
  EXPECT_TRUE(program.is_nobody_left());
}

TEST_F(RunEnd, AllStartAgainTogetherAtMostSoManyTimes) {
  const std::string script =
      "echo start $LOCKSTEP_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT $LOCKSTEP_JOB_ID; "
      "[ $RANK = 0 ] && exit 8; tail -f /dev/null";
  const Ended ended =
      run_to_end(command({"-n", "2", "--max-restarts", "3", "--restart-pause", "0.01", "--job-id", "j"}, script));
  EXPECT_EQ(ended.code, 8);
  for (int i = 0; i < 4; ++i) {
    const std::string count = std::to_string(i);
    EXPECT_EQ(count_of(ended.output, "[0] start " + count + " " + count + " j"), 1u) << ended.output;
  }
  EXPECT_EQ(count_of(ended.output, "[0] start"), 4u);
  EXPECT_TRUE(has(ended.errors, "starting all again in 0.04 s, restart 3 of 3")) << ended.errors;
}

TEST_F(RunEnd, ARestartThatSucceedsIsSuccess) {
  const Ended ended = run_to_end(
      command({"-n", "2", "--max-restarts", "3", "--restart-pause", "0"}, "[ $LOCKSTEP_RESTART_COUNT = 1 ]"));
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_EQ(count_of(ended.errors, "starting all again"), 1u);
}

TEST_F(RunEnd, AWrongCommandLineIsNotStartedAgain) {
  for (const char* code : {"2", "126", "127"}) {
    const Ended ended = run_to_end(command({"-n", "1", "--max-restarts", "3"}, std::string("exit ") + code));
    EXPECT_EQ(std::to_string(ended.code), code);
    EXPECT_FALSE(has(ended.errors, "starting all again")) << ended.errors;
  }
}

/// The report of `lockstep run --json`.
nlohmann::json report_in(const std::string& file) { return nlohmann::json::parse(lockstep::testing::text_of(file)); }

TEST_F(RunEnd, TheReportSaysHowEachWorkerEnded) {
  const std::string script = "[ $RANK = 1 ] || exec tail -f /dev/null; echo out of range >&2; exit 7";
  EXPECT_EQ(run_to_end(command({"-n", "3", "--job-id", "mine", "--json", path("report")}, script)).code, 7);
  const auto report = report_in(path("report"));
  EXPECT_EQ(report["job_id"], "mine");
  EXPECT_EQ(report["num_workers"], 3);
  EXPECT_EQ(report["exit_code"], 7);
  EXPECT_EQ(report["restarts"], 0);
  EXPECT_EQ(report["command"][0], "sh");
  ASSERT_EQ(report["attempts"].size(), 1u);
  const auto& attempt = report["attempts"][0];
  EXPECT_EQ(attempt["first_failure"]["worker"], 1);
  EXPECT_EQ(attempt["first_failure"]["exit_code"], 7);
  EXPECT_EQ(attempt["first_failure"]["last_errors"], nlohmann::json({"out of range"}));
  EXPECT_EQ(attempt["stopped"], 2);
  EXPECT_TRUE(attempt["signal"].is_null());
  ASSERT_EQ(attempt["workers"].size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const auto& worker = attempt["workers"][i];
    EXPECT_EQ(worker["worker"], i);
    EXPECT_EQ(worker["end"], i == 1 ? "exited" : "signalled");
    EXPECT_EQ(worker["signal"].is_null(), i == 1);
    EXPECT_GE(report["seconds"].get<double>(), worker["seconds"].get<double>());
  }
}

TEST_F(RunEnd, TheReportHasEachStart) {
  const std::string script = "[ $LOCKSTEP_RESTART_COUNT = 2 ] || kill -9 $$";
  EXPECT_EQ(
      run_to_end(command({"-n", "1", "--max-restarts", "5", "--restart-pause", "0", "--json", path("report")}, script))
          .code,
      0);
  const auto report = report_in(path("report"));
  EXPECT_EQ(report["exit_code"], 0);
  EXPECT_EQ(report["restarts"], 2);
  EXPECT_EQ(report["max_restarts"], 5);
  ASSERT_EQ(report["attempts"].size(), 3u);
  EXPECT_EQ(report["attempts"][0]["first_failure"]["signal"], "SIGKILL");
  EXPECT_TRUE(report["attempts"][2]["first_failure"].is_null());
  EXPECT_EQ(report["attempts"][2]["workers"][0]["exit_code"], 0);
}

TEST_F(RunEnd, AReportThatCannotBeWrittenIsToldBeforeAnyWorkerStarts) {
  const Ended ended = run_to_end(command({"-n", "1", "--json", path("no/folder")}, "touch " + path("started")));
  EXPECT_EQ(ended.code, 3);
  EXPECT_TRUE(has(ended.errors, "LS-FILE")) << ended.errors;
  EXPECT_FALSE(std::filesystem::exists(path("started")));
}

TEST_F(RunEnd, ASignalEndsThePauseBeforeARestart) {
  StartedProgram program(command({"-n", "1", "--max-restarts", "3", "--restart-pause", "30"}, "exit 1"));
  program.read_until_errors_have("starting all again in 30 s");
  const auto before = std::chrono::steady_clock::now();
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
}

TEST_F(RunEnd, WhereTheSystemRefusesAWorkerTheOthersAreEnded) {
  const auto few_files = [] {
    const rlimit limit{40, 40};
    setrlimit(RLIMIT_NOFILE, &limit);
  };
  StartedProgram program(command({"-n", "30"}, kForever), few_files);
  EXPECT_EQ(program.wait(), 3);
  EXPECT_TRUE(has(program.errors(), "LS-LAUNCH")) << program.errors();
  EXPECT_TRUE(program.is_nobody_left());
}

}  // namespace
