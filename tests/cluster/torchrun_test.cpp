// torchrun's variables, as torchrun and Kubeflow's PyTorchJob set them.
#include <gtest/gtest.h>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using Variables = Environment::Variables;

ClusterSpec resolve(const Variables& variables) { return resolve_cluster({}, Environment(variables)); }

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

/// The second worker of the second of two hosts, as torchrun starts it with --nnodes 2 --nproc-per-node 2.
const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"GROUP_RANK", "1"},
                             {"GROUP_WORLD_SIZE", "2"},
                             {"ROLE_RANK", "3"},
                             {"ROLE_WORLD_SIZE", "4"},
                             {"ROLE_NAME", "default"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"},
                             {"TORCHELASTIC_MAX_RESTARTS", "0"},
                             {"TORCHELASTIC_RUN_ID", "a1b2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                             {"OMP_NUM_THREADS", "1"}};

TEST(Torchrun, SaysWhoThisProcessIs) {
  const ClusterSpec spec = resolve(kTorchrun);
  EXPECT_EQ(spec.source, "torchrun");
  EXPECT_EQ(spec.num_workers(), 4);
  EXPECT_EQ(spec.worker_index(), 3);
  EXPECT_EQ(spec.local_worker, 1);
  EXPECT_EQ(spec.chief_address(), "node1:29500");
  EXPECT_EQ(spec.job_id, "a1b2");
  EXPECT_TRUE(spec.disagreements.empty());
}

TEST(Torchrun, LeavesThePortToTheAgentThatListensThere) {
  const Variables agent = with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(resolve(agent).chief_address(), "node1:29501");
  EXPECT_EQ(resolve(with(agent, "MASTER_PORT", "65535")).chief_address(), "node1:65534");
  EXPECT_EQ(resolve(with(agent, "LOCKSTEP_CHIEF_ADDRESS", "node1:5000")).chief_address(), "node1:5000");
}

TEST(Torchrun, AJobWithoutAnIdHasNone) {
  EXPECT_EQ(resolve(with(kTorchrun, "TORCHELASTIC_RUN_ID", "none")).job_id, "");
}

TEST(Torchrun, AnIPv6AddressGetsItsBrackets) {
  EXPECT_EQ(resolve(with(kTorchrun, "MASTER_ADDR", "fd00::1")).chief_address(), "[fd00::1]:29500");
}

TEST(Torchrun, KubeflowsPyTorchJobHasNoLocalRank) {
  const ClusterSpec spec = resolve({{"MASTER_ADDR", "j-master-0"},
                                    {"MASTER_PORT", "23456"},
                                    {"WORLD_SIZE", "3"},
                                    {"RANK", "2"},
                                    {"PET_NNODES", "3"},
                                    {"PET_NPROC_PER_NODE", "1"},
                                    {"PET_NODE_RANK", "2"}});
  EXPECT_EQ(spec.source, "torchrun");
  EXPECT_EQ(spec.num_workers(), 3);
  EXPECT_EQ(spec.worker_index(), 2);
  EXPECT_EQ(spec.local_worker, 0);
  EXPECT_EQ(spec.chief_address(), "j-master-0:23456");
  EXPECT_TRUE(spec.disagreements.empty());
}

TEST(Torchrun, NamesWhatIsMissing) {
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    Variables variables = kTorchrun;
    variables.erase(name);
    expect_error<ClusterError>([&] { resolve(variables); }, "LS-CLUSTER-INCOMPLETE",
                               {"TORCHELASTIC_RUN_ID=a1b2", name});
  }
  // Without torchrun's own variable: two of the three are no accident.
  expect_error<ClusterError>(
      [] {
        resolve({{"RANK", "0"}, {"MASTER_ADDR", "a"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"WORLD_SIZE"});
  expect_error<ClusterError>(
      [] {
        resolve({{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"RANK"});
  expect_error<ClusterError>(
      [] {
        resolve({{"WORLD_SIZE", "2"}, {"RANK", "1"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"MASTER_ADDR"});
}

TEST(Torchrun, ACountOfSeveralWorkersWithoutAPlaceIsAnError) {
  const auto refused = [](const Variables& variables, std::string_view count, std::string_view missing) {
    expect_error<ClusterError>([&] { resolve(variables); }, "LS-CLUSTER-INCOMPLETE", {count, missing});
  };
  refused({{"WORLD_SIZE", "4"}}, "WORLD_SIZE=4", "RANK");
  refused({{"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}, "WORLD_SIZE=2", "RANK");
  refused({{"LOCAL_WORLD_SIZE", "4"}}, "LOCAL_WORLD_SIZE=4", "RANK");
  refused({{"LOCAL_WORLD_SIZE", "4"}, {"RANK", "1"}}, "LOCAL_WORLD_SIZE=4", "WORLD_SIZE");
  refused({{"WORLD_SIZE", "4"}, {"JOB_COMPLETION_INDEX", "1"}}, "WORLD_SIZE=4", "MASTER_ADDR");
  // A program that is meant to be alone says so.
  EXPECT_EQ(resolve({{"WORLD_SIZE", "4"}, {"LOCKSTEP_NUM_WORKERS", "1"}}).num_workers(), 1);
  EXPECT_EQ(resolve_cluster({.num_workers = 1}, Environment(Variables{{"WORLD_SIZE", "4"}})).num_workers(), 1);
}

TEST(Torchrun, AVariableThatOthersUseTooDoesNotBreakAProgramThatIsAlone) {
  const Variables rows[] = {{{"RANK", "colonel"}},
                            {{"WORLD_SIZE", "1"}},
                            {{"WORLD_SIZE", "01"}},
                            {{"WORLD_SIZE", "0"}},
                            {{"WORLD_SIZE", "big"}},
                            {{"WORLD_SIZE", "4x4"}},
                            {{"LOCAL_WORLD_SIZE", "1"}},
                            {{"MASTER_ADDR", "node1"}},
                            {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}},
                            {{"LOCAL_RANK", "0"}},
                            {{"WORLD_SIZE", "1"}, {"RANK", "0"}}};
  for (const Variables& variables : rows) {
    const ClusterSpec spec = resolve(variables);
    EXPECT_EQ(spec.source, "alone") << variables.begin()->first;
    EXPECT_TRUE(spec.disagreements.empty()) << variables.begin()->first;
  }
}

TEST(Torchrun, NamesWhatIsMalformed) {
  const std::pair<const char*, const char*> rows[] = {{"RANK", "4"},
                                                      {"RANK", "x"},
                                                      {"WORLD_SIZE", "0"},
                                                      {"WORLD_SIZE", "4.5"},
                                                      {"MASTER_ADDR", "no de"},
                                                      {"MASTER_PORT", "0"},
                                                      {"LOCAL_RANK", "-1"},
                                                      {"TORCHELASTIC_USE_AGENT_STORE", "perhaps"}};
  for (const auto& [name, value] : rows) {
    expect_error<ClusterError>([&] { resolve(with(kTorchrun, name, value)); }, "LS-CLUSTER-VALUE", {name, value});
  }
}

/// Worker 2 of four nodes, as Kubeflow's TrainJob starts a program that is not torchrun.
const Variables kTrainJob = {{"PET_NNODES", "4"},
                             {"PET_NPROC_PER_NODE", "auto"},
                             {"PET_NODE_RANK", "2"},
                             {"PET_MASTER_ADDR", "j-node-0-0.j"},
                             {"PET_MASTER_PORT", "29500"}};

TEST(Pet, IsOneWorkerForEachNode) {
  const ClusterSpec spec = resolve(kTrainJob);
  EXPECT_EQ(spec.source, "PET_*");
  EXPECT_EQ(spec.num_workers(), 4);
  EXPECT_EQ(spec.worker_index(), 2);
  EXPECT_EQ(spec.chief_address(), "j-node-0-0.j:29500");
  EXPECT_EQ(resolve(with(kTrainJob, "PET_NNODES", "4:4")).num_workers(), 4);
  EXPECT_EQ(resolve({{"PET_NNODES", "1"}}).num_workers(), 1);
}

TEST(Pet, IsOverWhereTorchrunHasRun) {
  Variables variables = kTorchrun;
  variables.insert(kTrainJob.begin(), kTrainJob.end());
  const ClusterSpec spec = resolve(variables);
  EXPECT_EQ(spec.source, "torchrun");
  EXPECT_TRUE(spec.disagreements.empty());
}

TEST(Pet, SeveralWorkersOnANodeNeedTorchrun) {
  expect_error<ClusterError>([] { resolve(with(kTrainJob, "PET_NPROC_PER_NODE", "8")); }, "LS-CLUSTER-INCOMPLETE",
                             {"PET_NPROC_PER_NODE=8"});
  expect_error<ClusterError>([] { resolve(with(kTrainJob, "PET_NNODES", "2:4")); }, "LS-CLUSTER-INCOMPLETE",
                             {"PET_NNODES=2:4"});
}

TEST(Pet, HalfADescriptionOfSeveralWorkersIsAnError) {
  expect_error<ClusterError>(
      [] {
        resolve({{"PET_NPROC_PER_NODE", "4"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"PET_NPROC_PER_NODE=4"});
  expect_error<ClusterError>(
      [] {
        resolve({{"PET_NODE_RANK", "2"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"PET_NODE_RANK=2", "PET_NNODES"});
  for (const char* one : {"1", "auto"}) EXPECT_EQ(resolve({{"PET_NPROC_PER_NODE", one}}).source, "alone") << one;
  EXPECT_EQ(resolve({{"PET_NODE_RANK", "0"}}).num_workers(), 1);
}

TEST(Pet, NamesWhatIsMissingOrMalformed) {
  for (const char* name : {"PET_NODE_RANK", "PET_MASTER_ADDR"}) {
    Variables variables = kTrainJob;
    variables.erase(name);
    expect_error<ClusterError>([&] { resolve(variables); }, "LS-CLUSTER-INCOMPLETE");
  }
  const std::pair<const char*, const char*> rows[] = {{"PET_NNODES", "x"},         {"PET_NNODES", "0"},
                                                      {"PET_NNODES", "1:"},        {"PET_NODE_RANK", "4"},
                                                      {"PET_NPROC_PER_NODE", "x"}, {"PET_MASTER_PORT", "x"}};
  for (const auto& [name, value] : rows) {
    expect_error<ClusterError>([&] { resolve(with(kTrainJob, name, value)); }, "LS-CLUSTER-VALUE", {name});
  }
}

}  // namespace
}  // namespace lockstep
