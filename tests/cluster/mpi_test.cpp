// The launchers of MPI programs: Open MPI, PMI and PMIx.
#include <gtest/gtest.h>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using Variables = Environment::Variables;

ClusterSpec resolve(const Variables& variables) { return resolve_cluster({}, Environment(variables)); }

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

/// Rank 5 of 8 on two hosts, by Open MPI's mpirun.
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_SIZE", "8"},
                            {"OMPI_COMM_WORLD_RANK", "5"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                            {"OMPI_UNIVERSE_SIZE", "8"},
                            {"PMIX_RANK", "5"},
                            {"PMIX_NAMESPACE", "prterun-node1-4711@1"}};

TEST(OpenMpi, NeedsToBeToldWhereRankZeroIs) {
  expect_error<ClusterError>([] { resolve(kOpenMpi); }, "LS-CLUSTER-INCOMPLETE", {"Open MPI", "8 workers"});
  for (const Variables& chief : {Variables{{"LOCKSTEP_CHIEF_ADDRESS", "node1:2222"}},
                                 Variables{{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "2222"}}}) {
    const ClusterSpec spec = resolve(with(kOpenMpi, chief));
    EXPECT_EQ(spec.source, "Open MPI");
    EXPECT_EQ(spec.num_workers(), 8);
    EXPECT_EQ(spec.worker_index(), 5);
    EXPECT_EQ(spec.local_worker, 1);
    EXPECT_EQ(spec.chief_address(), "node1:2222");
    EXPECT_EQ(spec.job_id, "prterun-node1-4711@1");
    EXPECT_TRUE(spec.disagreements.empty());
  }
}

TEST(OpenMpi, OnOneHostMeetsAtTheLoopbackAddressWithAPortOfTheJob) {
  const Variables local = with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "5"}});
  const std::string address = resolve(local).chief_address();
  EXPECT_TRUE(address.starts_with("127.0.0.1:2")) << address;
  EXPECT_NE(resolve(with(local, {{"PMIX_NAMESPACE", "another@1"}})).chief_address(), address);
  EXPECT_EQ(resolve(with(local, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}})).chief_address(),
            address);
}

TEST(OpenMpi, InsideASlurmStepTakesTheChiefFromSlurm) {
  const ClusterSpec spec = resolve(with(kOpenMpi, {{"SLURM_PROCID", "5"},
                                                   {"SLURM_STEP_NUM_TASKS", "8"},
                                                   {"SLURM_STEP_NODELIST", "node[1-2]"},
                                                   {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                                                   {"SLURM_JOB_ID", "7"}}));
  EXPECT_EQ(spec.source, "Open MPI");
  EXPECT_TRUE(spec.chief_address().starts_with("node1:")) << spec.chief_address();
}

TEST(OpenMpi, NamesWhatIsMissingOrMalformed) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}) {
    Variables variables = kOpenMpi;
    variables.erase(name);
    expect_error<ClusterError>([&] { resolve(variables); }, "LS-CLUSTER-INCOMPLETE", {name});
    expect_error<ClusterError>([&] { resolve(with(kOpenMpi, {{name, "x"}})); }, "LS-CLUSTER-VALUE", {name});
  }
  expect_error<ClusterError>(
      [] {
        resolve(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "x"}}));
      },
      "LS-CLUSTER-VALUE", {"OMPI_COMM_WORLD_LOCAL_RANK"});
  expect_error<ClusterError>(
      [] {
        resolve(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "x"}}));
      },
      "LS-CLUSTER-VALUE", {"OMPI_COMM_WORLD_LOCAL_SIZE"});
}

TEST(Pmi, OfMpichOnOneHost) {
  const ClusterSpec spec = resolve(
      {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"PMI_FD", "9"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}});
  EXPECT_EQ(spec.source, "PMI");
  EXPECT_EQ(spec.num_workers(), 4);
  EXPECT_EQ(spec.worker_index(), 2);
  EXPECT_EQ(spec.local_worker, 2);
  EXPECT_TRUE(spec.chief_address().starts_with("127.0.0.1:")) << spec.chief_address();
}

TEST(Pmi, OfMvapichOnTwoHosts) {
  const ClusterSpec spec = resolve({{"MV2_COMM_WORLD_RANK", "3"},
                                    {"MV2_COMM_WORLD_SIZE", "4"},
                                    {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                                    {"MV2_COMM_WORLD_LOCAL_SIZE", "2"},
                                    {"MASTER_ADDR", "node1"}});
  EXPECT_EQ(spec.source, "PMI");
  EXPECT_EQ(spec.worker_index(), 3);
  EXPECT_EQ(spec.local_worker, 1);
  EXPECT_TRUE(spec.chief_address().starts_with("node1:2")) << spec.chief_address();
}

TEST(Pmi, NamesWhatIsMissingOrMalformed) {
  expect_error<ClusterError>(
      [] {
        resolve({{"PMI_RANK", "2"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"PMI_RANK=2", "PMI_SIZE", "LOCKSTEP_NUM_WORKERS", "LOCKSTEP_WORKER_INDEX"});
  expect_error<ClusterError>(
      [] {
        resolve({{"MV2_COMM_WORLD_SIZE", "2"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"MV2_COMM_WORLD_RANK"});
  expect_error<ClusterError>([] { resolve({{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}}); }, "LS-CLUSTER-VALUE", {"PMI_RANK"});
}

TEST(Pmix, NeedsToBeToldTheCount) {
  const Variables pmix = {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "prterun@1"}};
  expect_error<ClusterError>([&] { resolve(pmix); }, "LS-CLUSTER-INCOMPLETE", {"PMIX_RANK=2", "LOCKSTEP_NUM_WORKERS"});
  const ClusterSpec spec =
      resolve(with(pmix, {{"LOCKSTEP_NUM_WORKERS", "4"}, {"LOCKSTEP_CHIEF_ADDRESS", "node1:2222"}}));
  EXPECT_EQ(spec.source, "PMIx");
  EXPECT_EQ(spec.num_workers(), 4);
  EXPECT_EQ(spec.worker_index(), 2);
  // Not every launcher tells a namespace.
  expect_error<ClusterError>(
      [] {
        resolve({{"PMIX_RANK", "2"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"PMIX_RANK=2", "LOCKSTEP_NUM_WORKERS"});
  EXPECT_EQ(resolve({{"PMIX_RANK", "2"}, {"LOCKSTEP_NUM_WORKERS", "1"}}).num_workers(), 1);
}

}  // namespace
}  // namespace lockstep
