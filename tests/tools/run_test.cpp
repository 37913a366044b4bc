// The program `lockstep run`, as a user runs it: which workers are started, and with what.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "tests/support/run_program.h"
#include "tests/tools/run_support.h"

namespace {

using lockstep::testing::command;
using lockstep::testing::Ended;
using lockstep::testing::has;
using lockstep::testing::lines_of;
using lockstep::testing::run_to_end;
using lockstep::testing::RunProgram;
using lockstep::testing::StartedProgram;
using lockstep::testing::text_of;
using lockstep::testing::variables_in;

class Run : public RunProgram {};

TEST_F(Run, EachWorkerGetsTheVariablesOfLockstepAndOfTorchrun) {
  const std::string script = "env -0 > " + path("") + "$LOCKSTEP_WORKER_INDEX";
  const auto prepare = [] {
    for (const char* name : {"TF_CONFIG",
                             "OMPI_COMM_WORLD_RANK",
                             "PMI_RANK",
                             "PMIX_RANK",
                             "SLURM_PROCID",
                             "SLURM_STEP_NODELIST",
                             "PET_NNODES",
                             "PALS_RANKID",
                             "FLUX_TASK_RANK",
                             "ALPS_APP_PE",
                             "JSM_NAMESPACE_RANK",
                             "MP_CHILD",
                             "MPIRUN_RANK",
                             "PMI_ID",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "NODE_RANK",
                             "JOB_COMPLETION_INDEX",
                             "LOCKSTEP_SECRET_FILE",
                             "RANK",
                             "LOCKSTEP_SECRET"}) {
      setenv(name, "of another launcher", 1);
    }
    setenv("OMP_NUM_THREADS", "3", 1);
    setenv("SLURM_JOB_ID", "77", 1);
  };
  ASSERT_EQ(run_to_end(command({"-n", "3", "--max-restarts", "5"}, script), prepare).code, 0);
  const auto first = variables_in(path("0"));
  for (int i = 0; i < 3; ++i) {
    auto of = variables_in(path(std::to_string(i)));
    const std::string index = std::to_string(i);
    for (const char* name : {"LOCKSTEP_WORKER_INDEX", "LOCKSTEP_LOCAL_WORKER", "RANK", "LOCAL_RANK", "ROLE_RANK"}) {
      EXPECT_EQ(of[name], index) << name;
    }
    for (const char* name : {"LOCKSTEP_NUM_WORKERS", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) {
      EXPECT_EQ(of[name], "3") << name;
    }
    EXPECT_EQ(of["GROUP_RANK"], "0");
    EXPECT_EQ(of["GROUP_WORLD_SIZE"], "1");
    EXPECT_EQ(of["ROLE_NAME"], "default");
    EXPECT_EQ(of["MASTER_ADDR"], "127.0.0.1");
    EXPECT_EQ(of["LOCKSTEP_CHIEF_ADDRESS"], "127.0.0.1:" + of["MASTER_PORT"]);
    EXPECT_GT(std::stoi(of["MASTER_PORT"]), 0);
    EXPECT_EQ(of["TORCHELASTIC_RUN_ID"], of["LOCKSTEP_JOB_ID"]);
    EXPECT_EQ(of["TORCHELASTIC_RESTART_COUNT"], "0");
    EXPECT_EQ(of["LOCKSTEP_RESTART_COUNT"], "0");
    EXPECT_EQ(of["TORCHELASTIC_MAX_RESTARTS"], "5");
    for (const char* name : {"LOCKSTEP_SECRET", "LOCKSTEP_JOB_ID", "MASTER_PORT"}) {
      EXPECT_EQ(of[name], first.at(name)) << name;
    }
    EXPECT_EQ(of["LOCKSTEP_SECRET"].size(), 64u);
    EXPECT_EQ(of["LOCKSTEP_SECRET"].find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_EQ(of["OMP_NUM_THREADS"], "3") << "the user's";
    EXPECT_EQ(of["SLURM_JOB_ID"], "77") << "no description of a worker";
    for (const auto& [name, value] : of) EXPECT_NE(value, "of another launcher") << name;
  }
  ASSERT_EQ(run_to_end(command({"-n", "1", "--port", "4711", "--job-id", "my.job"}, script)).code, 0);
  auto second = variables_in(path("0"));
  EXPECT_EQ(second["MASTER_PORT"], "4711");
  EXPECT_EQ(second["LOCKSTEP_JOB_ID"], "my.job");
  EXPECT_NE(second["LOCKSTEP_SECRET"], first.at("LOCKSTEP_SECRET"));
}

/// What /proc calls a list: "0-2,5".
std::set<int> cores_in(const std::string& list) {
  std::set<int> cores;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) {
    const std::size_t dash = part.find('-');
    const int last = std::stoi(dash == std::string::npos ? part : part.substr(dash + 1));
    for (int core = std::stoi(part); core <= last; ++core) cores.insert(core);
  }
  return cores;
}

std::vector<std::set<int>> cores_of_workers(const std::vector<std::string>& flags) {
  const Ended ended = run_to_end(command(flags, "grep Cpus_allowed_list /proc/self/status"));
  EXPECT_EQ(ended.code, 0) << ended.errors;
  std::vector<std::set<int>> cores;
  for (const std::string& line : lines_of(ended.output)) cores.push_back(cores_in(line.substr(line.rfind('\t') + 1)));
  return cores;
}

TEST_F(Run, WorkersHaveDisjointCoresWhileThereAreEnough) {
  cpu_set_t mask;
  sched_getaffinity(0, sizeof mask, &mask);
  const auto available = static_cast<std::size_t>(CPU_COUNT(&mask));
  for (const std::size_t workers : {std::size_t{1}, available}) {
    std::set<int> all;
    std::size_t sum = 0;
    for (const auto& cores : cores_of_workers({"-n", std::to_string(workers)})) {
      all.insert(cores.begin(), cores.end());
      sum += cores.size();
    }
    EXPECT_EQ(sum, available) << workers;
    EXPECT_EQ(all.size(), available) << workers;
  }
  for (const auto& cores : cores_of_workers({"-n", std::to_string(available + 1)})) EXPECT_EQ(cores.size(), 1u);
  for (const auto& cores : cores_of_workers({"-n", "2", "--no-pin"})) EXPECT_EQ(cores.size(), available);
}

TEST_F(Run, WordsAfterTheProgramsNameAreThePrograms) {
  const auto printed = [](std::vector<std::string> words) {
    words.insert(words.begin(), {LOCKSTEP_PROGRAM, "run"});
    return run_to_end(words).output;
  };
  EXPECT_EQ(printed({"-n", "1", "printf", "<%s>", "-n", "7", "--help"}), "[0] <-n><7><--help>\n");
  EXPECT_EQ(printed({"-n1", "--", "printf", "<%s>", "--", "[a,b]", "", "run"}), "[0] <--><[a,b]><><run>\n");
  EXPECT_EQ(printed({"--grace=1", "-n", "1", "--no-pin", "printf", "<%s>", "--no-pin"}), "[0] <--no-pin>\n");
}

TEST_F(Run, OnlyWorkerZeroReadsStandardInput) {
  std::ofstream(path("input")) << "hello\n";
  const auto prepare = [&] { dup2(open(path("input").c_str(), O_RDONLY), STDIN_FILENO); };
  const Ended ended = run_to_end(command({"-n", "3"}, "cat"), prepare);
  EXPECT_EQ(ended.output, "[0] hello\n");
  EXPECT_EQ(ended.code, 0);
}

TEST_F(Run, TheSecretIsInNoOutputAndOnNoCommandLine) {
  const std::string gate = fifo("gate");
  const std::string script = "printf %s $LOCKSTEP_SECRET > " + path("secret") + "; echo $$ > " + path("pid") +
                             "; echo ready; read line < " + gate + "; exit 1";
  StartedProgram program(command({"-n", "1", "--max-restarts", "0"}, script));
  program.read_until_output_has("ready");
  const std::string secret = text_of(path("secret"));
  ASSERT_EQ(secret.size(), 64u);
  for (const std::string& pid : {std::to_string(program.pid()), lines_of(text_of(path("pid"))).front()}) {
    const std::string line = text_of("/proc/" + pid + "/cmdline");
    EXPECT_FALSE(line.empty());
    EXPECT_FALSE(has(line, secret));
  }
  EXPECT_FALSE(has(text_of("/proc/" + std::to_string(program.pid()) + "/environ"), secret));
  std::ofstream(gate) << "go\n";
  EXPECT_EQ(program.wait(), 1);
  EXPECT_FALSE(has(program.output() + program.errors(), secret));
}

TEST_F(Run, BadFlagsAreOneLineAndExitCodeTwo) {
  const auto expect_refused = [](std::vector<std::string> words, const std::string& part) {
    words.insert(words.begin(), {LOCKSTEP_PROGRAM, "run"});
    const Ended ended = run_to_end(words);
    EXPECT_EQ(ended.code, 2) << ended.errors;
    EXPECT_EQ(lines_of(ended.errors).size(), 1u) << ended.errors;
    EXPECT_TRUE(has(ended.errors, part)) << ended.errors;
  };
  for (const char* count : {"0", "-1", "100000", "two", "1.5"}) expect_refused({"-n", count, "--", "true"}, count);
  expect_refused({"-n"}, "-n");
  expect_refused({"--", "true"}, "-n");
  expect_refused({"-n", "2"}, "no program");
  expect_refused({"-n", "2", "--"}, "no program");
  expect_refused({"--typo", "2", "--", "true"}, "--typo");
  expect_refused({"-n", "1", "--port", "70000", "true"}, "--port");
  expect_refused({"-n", "1", "--max-restarts", "-1", "true"}, "--max-restarts");
  expect_refused({"-n", "1", "--grace", "-1", "true"}, "--grace");
  expect_refused({"-n", "1", "--grace", "nan", "true"}, "--grace: nan is not a number from 0 to 86400");
  expect_refused({"-n", "1", "--restart-pause", "nan", "true"}, "--restart-pause: nan");
  expect_refused({"-n", "1", "--job-id", "a b", "true"}, "a b");
}

}  // namespace
