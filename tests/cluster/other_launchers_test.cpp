// Launchers that no source is named after, and ranks that nobody reads.
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

const Variables kFlux = {{"FLUX_TASK_RANK", "2"},
                         {"FLUX_JOB_SIZE", "4"},
                         {"FLUX_TASK_LOCAL_ID", "2"},
                         {"FLUX_JOB_NNODES", "1"},
                         {"FLUX_JOB_ID", "f4711"}};

TEST(OtherLauncher, IsReadWhereItsVariablesSuffice) {
  struct Row {
    const char* source;
    Variables variables;
    const char* chief;
  };
  const Row rows[] = {
      {"Flux", kFlux, "127.0.0.1:"},
      {"Flux", with(kFlux, {{"FLUX_JOB_NNODES", "2"}, {"LOCKSTEP_CHIEF_ADDRESS", "a:1"}}), "a:1"},
      {"JSM",
       {{"JSM_NAMESPACE_RANK", "2"},
        {"JSM_NAMESPACE_SIZE", "4"},
        {"JSM_NAMESPACE_LOCAL_RANK", "2"},
        {"JSM_NAMESPACE_LOCAL_SIZE", "4"}},
       "127.0.0.1:"},
      {"PALS",
       {{"PALS_RANKID", "2"},
        {"PALS_NODEID", "1"},
        {"PALS_LOCAL_RANKID", "0"},
        {"PALS_LOCAL_SIZE", "2"},
        {"LOCKSTEP_NUM_WORKERS", "4"},
        {"MASTER_ADDR", "a"}},
       "a:"},
      {"ALPS", {{"ALPS_APP_PE", "2"}, {"LOCKSTEP_NUM_WORKERS", "4"}, {"LOCKSTEP_CHIEF_ADDRESS", "a:1"}}, "a:1"},
      {"Horovod", {{"HOROVOD_RANK", "2"}, {"HOROVOD_SIZE", "4"}, {"HOROVOD_LOCAL_SIZE", "4"}}, "127.0.0.1:"},
      // PALS starts PMI as well, which tells no host.
      {"PMI", {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"PALS_RANKID", "2"}, {"PALS_LOCAL_SIZE", "4"}}, "127.0.0.1:"}};
  for (const Row& row : rows) {
    const ClusterSpec spec = resolve(row.variables);
    EXPECT_EQ(spec.source, row.source);
    EXPECT_EQ(spec.num_workers(), 4) << row.source;
    EXPECT_EQ(spec.worker_index(), 2) << row.source;
    EXPECT_TRUE(spec.chief_address().starts_with(row.chief)) << row.source << spec.chief_address();
    EXPECT_TRUE(spec.disagreements.empty()) << row.source << ": " << spec.disagreements.front();
  }
}

TEST(OtherLauncher, IsRefusedWhereTheyDoNot) {
  const std::pair<Variables, std::vector<std::string_view>> rows[] = {
      {{{"PALS_RANKID", "1"}, {"PALS_NODEID", "1"}, {"PALS_LOCAL_RANKID", "0"}}, {"PALS_RANKID=1", "PALS_NODEID=1"}},
      {{{"PALS_RANKID", "0"}}, {"PALS_RANKID=0"}},
      {{{"PALS_LOCAL_RANKID", "0"}}, {"PALS_LOCAL_RANKID=0"}},
      {{{"ALPS_APP_PE", "3"}}, {"ALPS_APP_PE=3"}},
      {{{"FLUX_TASK_RANK", "3"}}, {"FLUX_TASK_RANK=3"}},
      {{{"FLUX_JOB_SIZE", "3"}}, {"FLUX_JOB_SIZE=3"}},
      {{{"JSM_NAMESPACE_RANK", "0"}}, {"JSM_NAMESPACE_RANK=0"}},
      {{{"MPI_LOCALRANKID", "0"}}, {"MPI_LOCALRANKID=0"}},
      {{{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}, {"OMPI_COMM_WORLD_LOCAL_RANK=1"}},
      {{{"MV2_COMM_WORLD_RANK", "1"}}, {"MV2_COMM_WORLD_RANK=1"}},
      {{{"RANK", "3"}}, {"RANK=3"}},
      {{{"RANK", "0"}}, {"RANK=0"}},
      {{{"RANK", "3"}, {"WORLD_SIZE", "1"}}, {"RANK=3"}},
      {{{"LOCAL_RANK", "1"}}, {"LOCAL_RANK=1"}},
      {{{"NODE_RANK", "1"}}, {"NODE_RANK=1"}},
      {{{"ACME_RANK", "0"}, {"ACME_SIZE", "8"}}, {"ACME_RANK=0", "ACME_SIZE=8"}},
      {{{"ACME_WORLD_RANK", "7"}, {"ACME_WORLD_SIZE", "8"}}, {"ACME_WORLD_RANK=7", "ACME_WORLD_SIZE=8"}},
      {{{"ACME_PROCID", "1"}, {"ACME_NTASKS", "2"}}, {"ACME_PROCID=1", "ACME_NTASKS=2"}},
  };
  for (const auto& [variables, seen] : rows) {
    std::vector<std::string_view> values = seen;
    values.insert(values.end(), {"LOCKSTEP_NUM_WORKERS", "LOCKSTEP_WORKER_INDEX"});
    const auto error = testing::caught_from<ClusterError>([&] { resolve(variables); });
    if (!error) continue;
    EXPECT_EQ(error->code(), "LS-CLUSTER-INCOMPLETE") << error->what();
    for (const auto value : values) EXPECT_TRUE(testing::has_value(error->what(), value)) << error->what();
    // What the message says to do helps.
    EXPECT_EQ(resolve(with(variables, {{"LOCKSTEP_NUM_WORKERS", "1"}})).num_workers(), 1) << seen.front();
    const ClusterSpec spec = resolve(with(
        variables, {{"LOCKSTEP_NUM_WORKERS", "9"}, {"LOCKSTEP_WORKER_INDEX", "4"}, {"LOCKSTEP_CHIEF_ADDRESS", "a:1"}}));
    EXPECT_EQ(spec.worker_index(), 4) << seen.front();
  }
}

TEST(OtherLauncher, WithoutTheChiefIsRefusedWithWhatWasSeen) {
  expect_error<ClusterError>(
      [] {
        resolve(with(kFlux, {{"FLUX_JOB_NNODES", "2"}}));
      },
      "LS-CLUSTER-INCOMPLETE", {"Flux", "FLUX_JOB_SIZE=4", "FLUX_TASK_RANK=2", "LOCKSTEP_CHIEF_ADDRESS"});
}

TEST(OtherLauncher, OfOneProcessIsOneWorker) {
  const ClusterSpec spec = resolve({{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}});
  EXPECT_EQ(spec.source, "Flux");
  EXPECT_EQ(spec.num_workers(), 1);
  EXPECT_EQ(resolve({{"JSM_NAMESPACE_SIZE", "1"}}).num_workers(), 1);
}

TEST(OtherLauncher, WhatOtherProgramsUseTooDoesNotBreakAProgramThatIsAlone) {
  const Variables rows[] = {{{"LORA_RANK", "8"}},
                            {{"LORA_RANK", "8"}, {"LORA_SIZE", "4"}},
                            {{"PAGE_RANK", "high"}, {"PAGE_SIZE", "4096"}},
                            {{"ACME_RANK", "0"}, {"ACME_SIZE", "1"}},
                            {{"NODE_RANK", "0"}},
                            {{"FLUX_URI", "local:///run/flux"}},
                            {{"SLURM_ARRAY_TASK_ID", "3"}, {"SLURM_ARRAY_TASK_COUNT", "8"}}};
  for (const Variables& variables : rows) EXPECT_EQ(resolve(variables).source, "alone") << variables.begin()->first;
}

}  // namespace
}  // namespace lockstep
