// The program `lockstep run --hosts`, as a user runs it: a launcher for each host, here all of them on this machine.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>

#include "tests/support/free_port.h"
#include "tests/tools/run_support.h"

namespace {

using lockstep::testing::command;
using lockstep::testing::count_of;
using lockstep::testing::Ended;
using lockstep::testing::free_port;
using lockstep::testing::has;
using lockstep::testing::last_line_of;
using lockstep::testing::lines_of;
using lockstep::testing::run_to_end;
using lockstep::testing::RunProgram;
using lockstep::testing::StartedProgram;
using lockstep::testing::variables_in;

constexpr const char* kSecret = "a secret of this test";

void set_secret() { setenv("LOCKSTEP_SECRET", kSecret, 1); }

class RunHosts : public RunProgram {
 protected:
  /// Two workers on the first host, one on the second.
  RunHosts() { write("127.0.0.1:2\n127.0.0.2 slots=1\n"); }

  void write(const std::string& text) const { std::ofstream(path("hosts")) << text; }
  std::vector<std::string> flags(int host, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> result = {"--hosts", path("hosts"), "--port", port_, "--host-index", std::to_string(host)};
    result.insert(result.end(), more.begin(), more.end());
    return result;
  }
  /// The launcher of a host.
  std::unique_ptr<StartedProgram> start(int host, const std::string& script,
                                        const std::vector<std::string>& more = {}) const {
    return std::make_unique<StartedProgram>(command(flags(host, more), script), set_secret);
  }
  const std::string port_ = std::to_string(free_port());
};

TEST_F(RunHosts, EachWorkerGetsItsPlaceAmongAll) {
  const std::string script = "env -0 > " + path("") + "$LOCKSTEP_WORKER_INDEX; echo $RANK";
  const auto prepare = [] {
    set_secret();
    setenv("LOCKSTEP_INTERFACE", "lo", 1);
    setenv("SLURM_PROCID", "7", 1);
  };
  EXPECT_EQ(run_to_end(command(flags(1), script), prepare).output, "[2] 2\n");
  EXPECT_EQ(run_to_end(command(flags(0), script), prepare).code, 0);
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    auto of = variables_in(path(std::to_string(i)));
    const std::string host = i < 2 ? "0" : "1";
    const std::string local = i < 2 ? std::to_string(i) : "0";
    for (const char* name : {"LOCKSTEP_WORKER_INDEX", "RANK", "ROLE_RANK"}) EXPECT_EQ(of[name], std::to_string(i));
    for (const char* name : {"LOCKSTEP_LOCAL_WORKER", "LOCAL_RANK"}) EXPECT_EQ(of[name], local) << name;
    for (const char* name : {"LOCKSTEP_NUM_WORKERS", "WORLD_SIZE", "ROLE_WORLD_SIZE"}) EXPECT_EQ(of[name], "3") << name;
    EXPECT_EQ(of["LOCAL_WORLD_SIZE"], i < 2 ? "2" : "1");
    EXPECT_EQ(of["GROUP_RANK"], host);
    EXPECT_EQ(of["GROUP_WORLD_SIZE"], "2");
    EXPECT_EQ(of["LOCKSTEP_CHIEF_ADDRESS"], "127.0.0.1:" + port_);
    EXPECT_EQ(of["MASTER_ADDR"], "127.0.0.1");
    EXPECT_EQ(of["MASTER_PORT"], port_);
    EXPECT_EQ(of["LOCKSTEP_SECRET"], kSecret);
    EXPECT_EQ(of["LOCKSTEP_INTERFACE"], "lo");
    EXPECT_EQ(of.count("SLURM_PROCID"), 0u);
    EXPECT_EQ(of["LOCKSTEP_JOB_ID"], variables_in(path("0"))["LOCKSTEP_JOB_ID"]);
    EXPECT_EQ(of["TORCHELASTIC_RUN_ID"], of["LOCKSTEP_JOB_ID"]);
  }
}

TEST_F(RunHosts, ThePortIsAFixedOneWithoutTheFlag) {
  write("[::1]\n");
  const auto own_file = [] { setenv("LOCKSTEP_SECRET_FILE", "/the/users", 1); };
  const std::string script = "echo $LOCKSTEP_CHIEF_ADDRESS $MASTER_ADDR $LOCKSTEP_SECRET_FILE ${#LOCKSTEP_SECRET}";
  const std::vector<std::string> words = command({"--hosts", path("hosts"), "-n", "1", "--no-prefix"}, script);
  EXPECT_EQ(run_to_end(words, own_file).output, "[::1]:29600 ::1 /the/users 0\n");
  EXPECT_EQ(run_to_end(words).output, "[::1]:29600 ::1 64\n") << "one host needs no secret of the user's";
}

TEST_F(RunHosts, OnlyWorkerZeroOfTheJobReadsStandardInput) {
  std::ofstream(path("input")) << "hello\n";
  const auto prepare = [&] {
    set_secret();
    dup2(open(path("input").c_str(), O_RDONLY), STDIN_FILENO);
  };
  EXPECT_EQ(run_to_end(command(flags(0), "cat"), prepare).output, "[0] hello\n");
  EXPECT_EQ(run_to_end(command(flags(1), "cat"), prepare).output, "");
}

TEST_F(RunHosts, WorkersOfAllLaunchersMeet) {
  const std::string check = std::string(LOCKSTEP_PROGRAM) + " cluster --check";
  const auto second = start(1, check);
  const auto first = start(0, check);
  EXPECT_EQ(first->wait(), 0) << first->errors();
  EXPECT_EQ(second->wait(), 0) << second->errors();
  for (const char* worker : {"[2] worker 0: reached", "[2] worker 1: reached", "[2] worker 2: reached"}) {
    EXPECT_TRUE(has(second->output(), worker)) << second->output();
  }
}

TEST_F(RunHosts, LaunchersThatCountTheWorkersDifferentlyAreTold) {
  const std::string join = std::string("exec ") + LOCKSTEP_HOSTS_WORKER + " --join 40000";
  const auto first = start(0, join);
  first->read_until([&] { return count_of(first->output(), "started") == 2; });
  write("127.0.0.1:2\n127.0.0.2 slots=2\n");
  const auto second = start(1, join);
  EXPECT_EQ(second->wait(), 78);
  EXPECT_TRUE(has(second->output(), "was told that there are 4 workers")) << second->output();
  first->signal(SIGTERM);
  first->read_until_errors_have("SIGTERM goes to all workers");
  first->signal(SIGTERM);
  EXPECT_EQ(first->wait(), 128 + SIGTERM);
}

/// The worker of two launchers that makes calls until somebody is killed or told to stop.
class RunHostsEnd : public RunHosts, public ::testing::WithParamInterface<const char*> {
 protected:
  std::string script() const {
    return std::string("echo $LOCKSTEP_WORKER_INDEX has pid $$; exec ") + LOCKSTEP_HOSTS_WORKER + " --engine " +
           GetParam() + " --join 40000 --bytes 1000 --pause 1";
  }
  /// Waits until this many workers of a launcher's have made a call.
  static void wait_for_calls(StartedProgram& program, std::size_t workers) {
    program.read_until([&] { return count_of(program.output(), " call 1\n") == workers; });
  }
  static pid_t pid_of(const StartedProgram& program, const std::string& worker) {
    const std::string words = worker + " has pid ";
    return std::stoi(program.output().substr(program.output().find(words) + words.size()));
  }
};

TEST_P(RunHostsEnd, AWorkerThatFailsEndsAllShares) {
  for (const bool is_on_the_chiefs_host : {false, true}) {
    const auto first = start(0, script());
    const auto second = start(1, script());
    wait_for_calls(*first, 2);
    wait_for_calls(*second, 1);
    StartedProgram& hit = is_on_the_chiefs_host ? *first : *second;
    StartedProgram& other = is_on_the_chiefs_host ? *second : *first;
    kill(pid_of(hit, is_on_the_chiefs_host ? "0" : "2"), SIGKILL);
    EXPECT_EQ(hit.wait(), 128 + SIGKILL);
    EXPECT_EQ(other.wait(), 75) << other.errors();
    EXPECT_TRUE(has(last_line_of(hit.errors()), is_on_the_chiefs_host ? "worker 0 (pid" : "worker 2 (pid"))
        << hit.errors();
    EXPECT_TRUE(hit.is_nobody_left());
    EXPECT_TRUE(other.is_nobody_left());
  }
}

TEST_P(RunHostsEnd, AllSharesStartAgainAndMeetAgain) {
  for (const char* killed : {"2", "0", "1"}) {
    const std::vector<std::string> again = {"--max-restarts", "2", "--restart-pause", "0"};
    const auto first = start(0, script(), again);
    const auto second = start(1, script(), again);
    wait_for_calls(*first, 2);
    wait_for_calls(*second, 1);
    kill(pid_of(*killed == '2' ? *second : *first, killed), SIGKILL);
    wait_for_calls(*first, 4);
    wait_for_calls(*second, 2);
    first->signal(SIGTERM);
    EXPECT_EQ(first->wait(), 0) << first->errors();
    EXPECT_EQ(second->wait(), 0) << second->errors();
    EXPECT_TRUE(has(first->errors(), "restart 1 of 2")) << first->errors();
    EXPECT_TRUE(has(second->errors(), "restart 1 of 2")) << second->errors();
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, RunHostsEnd, ::testing::Values("auto", "tls"),
                         [](const auto& engine) { return std::string(engine.param); });

TEST_F(RunHosts, SeveralHostsNeedASecretOfTheUsers) {
  const Ended ended = run_to_end(command(flags(0), "true"), [] { unsetenv("LOCKSTEP_SECRET"); });
  EXPECT_EQ(ended.code, 3);
  for (const char* part : {"LS-CLUSTER-SECRET", "openssl rand -hex 32", "LOCKSTEP_SECRET_FILE"}) {
    EXPECT_TRUE(has(ended.errors, part)) << ended.errors;
  }
}

TEST_F(RunHosts, WhatCannotBeDecidedIsOneLineAndExitCodeTwo) {
  const auto expect_refused = [&](const std::string& text, std::vector<std::string> words,
                                  const std::vector<std::string>& parts) {
    write(text);
    words.insert(words.begin(), {LOCKSTEP_PROGRAM, "run"});
    words.insert(words.end(), {"--", "true"});
    const Ended ended = run_to_end(words, set_secret);
    EXPECT_EQ(ended.code, 2) << ended.errors;
    EXPECT_EQ(lines_of(ended.errors).size(), 1u) << ended.errors;
    for (const std::string& part : parts) EXPECT_TRUE(has(ended.errors, part)) << ended.errors;
  };
  const std::string hosts = path("hosts");
  expect_refused("127.0.0.1\n127.0.0.2", {"-n", "1", "--hosts", hosts}, {"LS-HOST-INDEX", "all are this host"});
  expect_refused("192.0.2.201\n192.0.2.202", {"-n", "1", "--hosts", hosts}, {"LS-HOST-INDEX", "none of the 2 hosts"});
  expect_refused("127.0.0.1\n127.0.0.2", {"-n", "1", "--hosts", hosts, "--host-index", "2"}, {"--host-index is 2"});
  expect_refused("127.0.0.1\n127.0.0.2", {"--hosts", hosts, "--host-index", "1"}, {"LS-FLAG", "line 1", "-n N"});
  expect_refused("127.0.0.1\n127.0.0.2", {"-n", "1", "--host-index", "1"}, {"--hosts"});
  expect_refused("127.0.0.1:0", {"--hosts", hosts}, {"LS-HOSTS", "line 1, column 11"});
  expect_refused("", {"-n", "1", "--hosts", hosts}, {"LS-HOSTS", "names no host"});
  expect_refused("", {"-n", "1", "--hosts", path("none")}, {"LS-HOSTS", "No such file"});
}

}  // namespace
