// LOCKSTEP_*: what they mean, alone and together with other sources.
#include <gtest/gtest.h>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using Variables = Environment::Variables;
using testing::expect_error;

ClusterSpec resolve(const Variables& variables) { return resolve_cluster({}, Environment(variables)); }

const Variables kOneOfFour = {
    {"LOCKSTEP_NUM_WORKERS", "4"},  {"LOCKSTEP_WORKER_INDEX", "2"}, {"LOCKSTEP_CHIEF_ADDRESS", "node1:2222"},
    {"LOCKSTEP_LOCAL_WORKER", "1"}, {"LOCKSTEP_JOB_ID", "job-7"},   {"LOCKSTEP_SECRET", "correct horse battery"},
    {"LOCKSTEP_INTERFACE", "eth0"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(LockstepVariables, SayEverything) {
  const ClusterSpec spec = resolve(kOneOfFour);
  EXPECT_EQ(spec.source, "LOCKSTEP_*");
  EXPECT_EQ(spec.num_workers(), 4);
  EXPECT_EQ(spec.worker_index(), 2);
  EXPECT_FALSE(spec.is_chief());
  EXPECT_EQ(spec.chief_address(), "node1:2222");
  EXPECT_EQ(spec.address(), "");
  EXPECT_EQ(spec.local_worker, 1);
  EXPECT_EQ(spec.job_id, "job-7");
  EXPECT_FALSE(spec.secret.is_empty());
  EXPECT_EQ(spec.interface_name, "eth0");
  EXPECT_TRUE(spec.disagreements.empty());
}

TEST(LockstepVariables, OneWorkerNeedsItsCountOnly) {
  const ClusterSpec spec = resolve({{"LOCKSTEP_NUM_WORKERS", "1"}});
  EXPECT_EQ(spec.source, "LOCKSTEP_*");
  EXPECT_EQ(spec.num_workers(), 1);
  EXPECT_TRUE(spec.is_chief());
}

TEST(LockstepVariables, NameWhichOneIsMissing) {
  const auto missing = [](const char* name) {
    Variables variables = kOneOfFour;
    variables.erase(name);
    expect_error<ClusterError>([&] { resolve(variables); }, "LS-CLUSTER-INCOMPLETE", {name});
  };
  missing("LOCKSTEP_NUM_WORKERS");
  missing("LOCKSTEP_WORKER_INDEX");
  missing("LOCKSTEP_CHIEF_ADDRESS");
  expect_error<ClusterError>(
      [] {
        resolve({{"LOCKSTEP_CHIEF_ADDRESS", "a:1"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"LOCKSTEP_NUM_WORKERS"});
}

TEST(LockstepVariables, NameWhichOneIsMalformed) {
  const std::pair<const char*, const char*> rows[] = {
      {"LOCKSTEP_NUM_WORKERS", "0"},        {"LOCKSTEP_NUM_WORKERS", "65537"},
      {"LOCKSTEP_NUM_WORKERS", "four"},     {"LOCKSTEP_WORKER_INDEX", "4"},
      {"LOCKSTEP_WORKER_INDEX", "-1"},      {"LOCKSTEP_CHIEF_ADDRESS", "node1"},
      {"LOCKSTEP_CHIEF_ADDRESS", "::1:22"}, {"LOCKSTEP_LOCAL_WORKER", "x"},
      {"LOCKSTEP_INTERFACE", "eth 0"},      {"LOCKSTEP_INTERFACE", "0123456789abcdef"}};
  for (const auto& [name, value] : rows) {
    expect_error<ClusterError>([&] { resolve(with(kOneOfFour, name, value)); }, "LS-CLUSTER-VALUE", {name, value});
  }
  expect_error<ClusterError>([] { resolve(with(kOneOfFour, "LOCKSTEP_JOB_ID", "a b")); }, "LS-CLUSTER-VALUE",
                             {"'a b'"});
}

TEST(LockstepVariables, ACountThatNoIndexBelongsToIsAnError) {
  expect_error<ClusterError>(
      [] {
        resolve({{"LOCKSTEP_NUM_WORKERS", "4"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"LOCKSTEP_NUM_WORKERS=4", "LOCKSTEP_WORKER_INDEX"});
  expect_error<ClusterError>(
      [] {
        resolve({{"LOCKSTEP_NUM_WORKERS", "4"}, {"PMIX_RANK", "1"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"PMIx", "LOCKSTEP_NUM_WORKERS=4", "LOCKSTEP_CHIEF_ADDRESS"});
}

TEST(LockstepVariables, TheLocalWorkerAloneIsNoCluster) {
  const ClusterSpec spec = resolve({{"LOCKSTEP_LOCAL_WORKER", "3"}});
  EXPECT_EQ(spec.source, "alone");
  EXPECT_EQ(spec.local_worker, 3);
}

TEST(LockstepVariables, HoldWhicheverSourceWins) {
  const Variables variables = {{"RANK", "1"},
                               {"WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "node1"},
                               {"MASTER_PORT", "29500"},
                               {"LOCAL_RANK", "1"},
                               {"TORCHELASTIC_RUN_ID", "run"},
                               {"LOCKSTEP_CHIEF_ADDRESS", "node1:4000"},
                               {"LOCKSTEP_LOCAL_WORKER", "5"},
                               {"LOCKSTEP_JOB_ID", "mine"},
                               {"LOCKSTEP_INTERFACE", "ib0"}};
  const ClusterSpec spec = resolve(variables);
  EXPECT_EQ(spec.source, "torchrun");
  EXPECT_EQ(spec.chief_address(), "node1:4000");
  EXPECT_EQ(spec.local_worker, 5);
  EXPECT_EQ(spec.job_id, "mine");
  EXPECT_EQ(spec.interface_name, "ib0");
  EXPECT_TRUE(spec.disagreements.empty()) << "another port is what one gives an address for";
}

TEST(LockstepVariables, AnotherChiefThanALosersIsNamed) {
  Variables variables = {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node2"}, {"MASTER_PORT", "1"}};
  variables.insert(kOneOfFour.begin(), kOneOfFour.end());
  const ClusterSpec spec = resolve(variables);
  EXPECT_EQ(spec.source, "LOCKSTEP_*");
  ASSERT_EQ(spec.disagreements.size(), 1u);
  for (const char* value : {"LOCKSTEP_CHIEF_ADDRESS=node1:2222", "MASTER_ADDR=node2"}) {
    EXPECT_NE(spec.disagreements[0].find(value), std::string::npos) << spec.disagreements[0];
  }
}

TEST(LockstepVariables, ACountWithoutAnIndexIsComparedWithTheWinners) {
  const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"PMIX_RANK", "3"},
                              {"MASTER_ADDR", "node1"},
                              {"LOCKSTEP_NUM_WORKERS", "2"}};
  const ClusterSpec spec = resolve(open_mpi);
  EXPECT_EQ(spec.source, "Open MPI");
  ASSERT_EQ(spec.disagreements.size(), 1u);
  for (const char* value : {"OMPI_COMM_WORLD_SIZE=4", "LOCKSTEP_NUM_WORKERS=2"}) {
    EXPECT_NE(spec.disagreements[0].find(value), std::string::npos) << spec.disagreements[0];
  }
  EXPECT_TRUE(resolve(with(open_mpi, "LOCKSTEP_NUM_WORKERS", "4")).disagreements.empty());
  expect_error<ClusterError>([&] { resolve(with(open_mpi, "LOCKSTEP_NUM_WORKERS", "1")); }, "LS-CLUSTER-ONE-WORKER",
                             {"LOCKSTEP_NUM_WORKERS=1", "OMPI_COMM_WORLD_SIZE=4"});
}

TEST(LockstepVariables, AnotherChiefThanTheWinnersIsNamed) {
  const ClusterSpec spec = resolve(
      with({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node2"}}, "LOCKSTEP_CHIEF_ADDRESS", "node1:4000"));
  EXPECT_EQ(spec.chief_address(), "node1:4000");
  ASSERT_EQ(spec.disagreements.size(), 1u);
  for (const char* value : {"LOCKSTEP_CHIEF_ADDRESS", "node1:4000", "MASTER_ADDR=node2"}) {
    EXPECT_NE(spec.disagreements[0].find(value), std::string::npos) << spec.disagreements[0];
  }
}

}  // namespace
}  // namespace lockstep
