// Slurm: steps, allocations, node lists.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <regex>
#include <string>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/cluster/sources.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"
#include "tests/support/run_program.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_error;
using Variables = Environment::Variables;

ClusterSpec resolve(const Variables& variables) { return resolve_cluster({}, Environment(variables)); }

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

/// Task 6 of a step with 2, 2, 2 and 1 tasks on four nodes.
const Variables kStep = {{"SLURM_JOB_ID", "123456"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "6"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "3"},
                         {"SLURM_NTASKS", "7"},
                         {"SLURM_STEP_NUM_TASKS", "7"},
                         {"SLURM_NODELIST", "gpu[01-03],cpu7"},
                         {"SLURM_STEP_NODELIST", "gpu[01-03],cpu7"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};

TEST(Slurm, AStepSaysWhoThisProcessIsAndWhereAllAre) {
  const ClusterSpec spec = resolve(kStep);
  EXPECT_EQ(spec.source, "Slurm");
  EXPECT_EQ(spec.num_workers(), 7);
  EXPECT_EQ(spec.worker_index(), 6);
  EXPECT_EQ(spec.local_worker, 0);
  EXPECT_EQ(spec.job_id, "123456.0");
  const int port = internal::port_of_job("123456.0");
  const std::string first = std::to_string(port);
  const std::string second = std::to_string(port + 1);
  EXPECT_EQ(spec.jobs.at("worker"),
            (std::vector<std::string>{"gpu01:" + first, "gpu01:" + second, "gpu02:" + first, "gpu02:" + second,
                                      "gpu03:" + first, "gpu03:" + second, "cpu7:" + first}));
  EXPECT_TRUE(spec.disagreements.empty());
}

TEST(Slurm, ThePortOfAJobNeverChanges) {
  // Firewalls and the other workers rely on it.
  EXPECT_EQ(internal::port_of_job(""), 27261);
  EXPECT_EQ(internal::port_of_job("123456.0"), 24612);
  for (int job = 0; job < 1000; ++job) {
    const uint16_t port = internal::port_of_job(std::to_string(job));
    EXPECT_GE(port, 20000);
    EXPECT_LT(port, 29000);
  }
}

TEST(Slurm, OnlyTheChiefIsKnownWhereTasksAreNotInBlocks) {
  const Variables rows[] = {with(kStep, {{"SLURM_DISTRIBUTION", "cyclic"}}),
                            with(kStep, {{"SLURM_DISTRIBUTION", "plane=2"}}),
                            with(kStep, {{"SLURM_PROCID", "1"}, {"SLURM_NODEID", "1"}, {"SLURM_LOCALID", "0"}}),
                            with(kStep, {{"SLURM_PROCID", "6"}, {"SLURM_NODEID", "2"}, {"SLURM_LOCALID", "1"}})};
  for (const Variables& variables : rows) {
    const ClusterSpec spec = resolve(variables);
    EXPECT_TRUE(spec.chief_address().starts_with("gpu01:")) << spec.chief_address();
    EXPECT_EQ(spec.jobs.at("worker")[3], "");
  }
  EXPECT_NE(resolve(with(kStep, {{"SLURM_DISTRIBUTION", "block:cyclic"}})).jobs.at("worker")[3], "");
}

TEST(Slurm, AnotherPortForTheChiefMayBeTheDerivedOneOfAnotherTask) {
  const std::string second = "gpu01:" + std::to_string(internal::port_of_job("123456.0") + 1);
  const ClusterSpec spec = resolve(with(kStep, {{"LOCKSTEP_CHIEF_ADDRESS", second}}));
  EXPECT_EQ(spec.chief_address(), second);
  EXPECT_EQ(spec.jobs.at("worker")[1], "");
  EXPECT_TRUE(spec.disagreements.empty());
}

TEST(Slurm, AStepOfOneTaskNeedsNoNodes) {
  const ClusterSpec spec = resolve({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  EXPECT_EQ(spec.source, "Slurm");
  EXPECT_EQ(spec.num_workers(), 1);
}

TEST(Slurm, AnAllocationWithoutAStepIsAloneAndSaysSo) {
  const Variables batch = {{"SLURM_JOB_ID", "7"},       {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"},
                           {"SLURM_LOCALID", "0"},      {"SLURM_NODEID", "0"}, {"SLURM_JOB_NUM_NODES", "2"},
                           {"SLURM_NODELIST", "n[1-2]"}};
  for (const Variables& variables :
       {batch, with(batch, {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}})}) {
    const ClusterSpec spec = resolve(variables);
    EXPECT_EQ(spec.source, "alone");
    ASSERT_EQ(spec.disagreements.size(), 1u);
    EXPECT_NE(spec.disagreements[0].find("SLURM_NTASKS=8"), std::string::npos) << spec.disagreements[0];
    EXPECT_NE(spec.disagreements[0].find("srun"), std::string::npos) << spec.disagreements[0];
  }
  EXPECT_TRUE(resolve({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "1"}}).disagreements.empty());
}

TEST(Slurm, OneTaskInAnAllocationOfSeveralHostsIsSaid) {
  const Variables step = {{"SLURM_JOB_ID", "1"},           {"SLURM_STEP_ID", "0"},       {"SLURM_PROCID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "1"},   {"SLURM_NTASKS", "1"},        {"SLURM_LOCALID", "0"},
                          {"SLURM_STEP_NODELIST", "n1"},   {"SLURM_JOB_NUM_NODES", "4"}, {"SLURM_NNODES", "4"},
                          {"SLURM_JOB_NODELIST", "n[1-4]"}};
  const ClusterSpec spec = resolve(step);
  EXPECT_EQ(spec.source, "Slurm");
  ASSERT_EQ(spec.disagreements.size(), 1u);
  for (const char* value : {"SLURM_JOB_NUM_NODES=4", "SLURM_STEP_NUM_TASKS=1"}) {
    EXPECT_NE(spec.disagreements[0].find(value), std::string::npos) << spec.disagreements[0];
  }
  EXPECT_TRUE(resolve(with(step, {{"SLURM_JOB_NUM_NODES", "1"}, {"SLURM_NNODES", "1"}})).disagreements.empty());
  EXPECT_TRUE(resolve_cluster({.num_workers = 1}, Environment(step)).disagreements.empty()) << "meant to be alone";
  EXPECT_EQ(resolve({{"PBS_NUM_NODES", "2"}}).disagreements.size(), 1u);
  EXPECT_EQ(resolve({{"LSB_MCPU_HOSTS", "a 4 b 4"}}).disagreements.size(), 1u);
  EXPECT_TRUE(resolve({{"LSB_MCPU_HOSTS", "a 4"}}).disagreements.empty());
}

TEST(Slurm, ATaskWhoseStepIsNotToldIsRefused) {
  expect_error<ClusterError>(
      [] {
        resolve({{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"SLURM_PROCID=3", "LOCKSTEP_NUM_WORKERS"});
}

TEST(Slurm, NamesWhatIsMissing) {
  for (const char* name : {"SLURM_PROCID", "SLURM_STEP_NODELIST"}) {
    Variables variables = kStep;
    variables.erase(name);
    expect_error<ClusterError>([&] { resolve(variables); }, "LS-CLUSTER-INCOMPLETE", {name});
  }
}

TEST(Slurm, NamesWhatIsMalformed) {
  const std::pair<const char*, const char*> rows[] = {{"SLURM_PROCID", "7"},
                                                      {"SLURM_STEP_NUM_TASKS", "x"},
                                                      {"SLURM_STEP_NODELIST", "gpu[01"},
                                                      {"SLURM_STEP_TASKS_PER_NODE", "2(3)"},
                                                      {"SLURM_STEP_ID", "x"},
                                                      {"SLURM_LOCALID", "x"},
                                                      {"SLURM_NODEID", "x"}};
  for (const auto& [name, value] : rows) {
    expect_error<ClusterError>([&] { resolve(with(kStep, {{name, value}})); }, "LS-CLUSTER-VALUE", {name, value});
  }
}

TEST(Slurm, NodesAndTasksMustFitTogether) {
  for (const char* tasks : {"2(x3)", "2(x3),2", "7", "1(x7)"}) {
    expect_error<ClusterError>(
        [&] {
          resolve(with(kStep, {{"SLURM_STEP_TASKS_PER_NODE", tasks}}));
        },
        "LS-CLUSTER-SPEC", {tasks, "SLURM_STEP_NUM_TASKS=7"});
  }
}

/// Four tasks on three nodes as a file of hosts deals them, so that task 0 is on node 2 of the sorted list.
Variables task_by_file(int task) {
  const char* node[] = {"2", "0", "1", "0"};
  const char* name[] = {"n3", "n1", "n2", "n1"};
  const char* local[] = {"0", "0", "0", "1"};
  return {{"SLURM_JOB_ID", "7"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_STEP_NODELIST", "n[1-3]"},
          {"SLURM_STEP_TASKS_PER_NODE", "2,1(x2)"},
          {"SLURM_PROCID", std::to_string(task)},
          {"SLURM_NODEID", node[task]},
          {"SLURMD_NODENAME", name[task]},
          {"SLURM_LOCALID", local[task]}};
}

TEST(Slurm, WhereTaskZeroIsNotKnownEveryTaskSaysSoAtOnce) {
  for (int task = 0; task < 4; ++task) {
    for (const Variables& how :
         {Variables{{"SLURM_DISTRIBUTION", "arbitrary"}}, Variables{{"SLURM_HOSTFILE", "/nonexistent"}},
          Variables{{"SLURM_DISTRIBUTION", "arbitrary"}, {"SLURM_HOSTFILE", "/nonexistent"}}}) {
      const Variables variables = with(task_by_file(task), how);
      expect_error<ClusterError>([&] { resolve(variables); }, "LS-CLUSTER-INCOMPLETE",
                                 {"SLURM_STEP_NODELIST=n[1-3]", how.begin()->first, "LOCKSTEP_CHIEF_ADDRESS"});
      const ClusterSpec spec = resolve(with(variables, {{"LOCKSTEP_CHIEF_ADDRESS", "n3:4000"}}));
      EXPECT_EQ(spec.chief_address(), "n3:4000");
      EXPECT_TRUE(spec.disagreements.empty()) << spec.disagreements.front();
    }
  }
  // On one host it is there, however the tasks are dealt.
  const ClusterSpec spec = resolve(
      with(task_by_file(1),
           {{"SLURM_STEP_NODELIST", "n1"}, {"SLURM_STEP_TASKS_PER_NODE", "4"}, {"SLURM_DISTRIBUTION", "arbitrary"}}));
  EXPECT_TRUE(spec.chief_address().starts_with("n1:")) << spec.chief_address();
}

TEST(Slurm, APlaceThatNoDealingInBlocksOrInTurnGivesIsDoubted) {
  // Task 0 on another node than the first, the first task of the first node, and a node that the list has elsewhere.
  for (const Variables& place : {Variables{{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "2"}},
                                 Variables{{"SLURM_PROCID", "4"}, {"SLURM_NODEID", "0"}},
                                 Variables{{"SLURM_PROCID", "5"}, {"SLURM_NODEID", "1"}, {"SLURM_LOCALID", "0"}},
                                 Variables{{"SLURMD_NODENAME", "gpu01"}}}) {
    expect_error<ClusterError>([&] { resolve(with(kStep, place)); }, "LS-CLUSTER-INCOMPLETE",
                               {"SLURM_NODEID", "LOCKSTEP_CHIEF_ADDRESS"});
  }
  EXPECT_TRUE(resolve(with(kStep, {{"SLURMD_NODENAME", "cpu7.cluster"}})).chief_address().starts_with("gpu01:"));
}

class SlurmHostFile : public testing::ScratchFolder {};

TEST_F(SlurmHostFile, TellsWhereEachTaskIs) {
  for (const char* text : {"n3\nn1\nn2\nn1\n", "# hosts\n\nn3\n n1 \nn[2,1]\nn9\n", "n3*1\nn1,n2\nn1*7"}) {
    const std::string file = write("hosts", text);
    std::vector<std::string> chief;
    for (int task = 0; task < 4; ++task) {
      const ClusterSpec spec = resolve(with(task_by_file(task), {{"SLURM_HOSTFILE", file}}));
      const int port = internal::port_of_job("7.0");
      EXPECT_EQ(spec.jobs.at("worker"),
                (std::vector<std::string>{fmt::format("n3:{}", port), fmt::format("n1:{}", port),
                                          fmt::format("n2:{}", port), fmt::format("n1:{}", port + 1)}))
          << text;
    }
  }
  // A file that is not this step's.
  for (const char* text : {"n1\nn2\nn3\nn1\n", "n3\nn1\nn2\n", "n3\nn1\nn4\nn1\n"}) {
    const Variables variables = with(task_by_file(0), {{"SLURM_HOSTFILE", write("hosts", text)}});
    expect_error<ClusterError>([&] { resolve(variables); }, "LS-CLUSTER-INCOMPLETE", {"LOCKSTEP_CHIEF_ADDRESS"});
  }
}

class SlurmExample : public testing::ScratchFolder {};

TEST_F(SlurmExample, GivesEachTaskItsPlace) {
  const std::string file = testing::text_of(LOCKSTEP_EXAMPLE_LAUNCHERS "/slurm.sh");
  const std::string secret = write("job.secret", "what the job's file has\n");
  ASSERT_EQ(chmod(secret.c_str(), 0600), 0);
  Variables variables;
  const std::regex assignment(R"(\nexport (\w+)=(\S+))");
  for (std::sregex_iterator one(file.begin(), file.end(), assignment), end; one != end; ++one) {
    variables[(*one)[1]] = std::regex_replace((*one)[2].str(), std::regex(R"(\$HOME)"), folder_.string());
  }
  std::map<std::string, std::string> flags;
  const std::regex directive(R"(\n#SBATCH --([\w-]+)=(\S+))");
  for (std::sregex_iterator one(file.begin(), file.end(), directive), end; one != end; ++one) {
    flags[(*one)[1]] = (*one)[2];
  }
  EXPECT_TRUE(file.ends_with("\nsrun \"$@\"\n")) << "a step of tasks";
  const int nodes = std::stoi(flags.at("nodes"));
  const int tasks = std::stoi(flags.at("ntasks-per-node"));
  // What Slurm gives the tasks of a step with these flags.
  const std::string all_nodes = "node[1-" + std::to_string(nodes) + "]";
  for (int task = 0; task < nodes * tasks; ++task) {
    const ClusterSpec spec =
        resolve(with(variables, {{"SLURM_JOB_ID", "7"},
                                 {"SLURM_STEP_ID", "0"},
                                 {"SLURM_PROCID", std::to_string(task)},
                                 {"SLURM_LOCALID", std::to_string(task % tasks)},
                                 {"SLURM_NODEID", std::to_string(task / tasks)},
                                 {"SLURM_NTASKS", std::to_string(nodes * tasks)},
                                 {"SLURM_STEP_NUM_TASKS", std::to_string(nodes * tasks)},
                                 {"SLURM_STEP_NODELIST", all_nodes},
                                 {"SLURM_STEP_TASKS_PER_NODE", fmt::format("{}(x{})", tasks, nodes)}}));
    EXPECT_EQ(spec.source, "Slurm");
    EXPECT_EQ(spec.num_workers(), nodes * tasks);
    EXPECT_EQ(spec.worker_index(), task);
    EXPECT_TRUE(spec.chief_address().starts_with("node1:")) << spec.chief_address();
    EXPECT_EQ(spec.secret.reveal(), "what the job's file has");
    EXPECT_TRUE(spec.disagreements.empty());
  }
}

}  // namespace
}  // namespace lockstep
