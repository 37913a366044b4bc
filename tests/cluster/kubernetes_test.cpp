// Indexed jobs of Kubernetes.
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"
#include "tests/support/run_program.h"

namespace lockstep {
namespace {

using testing::expect_error;
using Variables = Environment::Variables;

ClusterSpec resolve(const Variables& variables) { return resolve_cluster({}, Environment(variables)); }

TEST(Kubernetes, AnIndexedJobNeedsTheCountAndTheChief) {
  const Variables rows[] = {
      {{"JOB_COMPLETION_INDEX", "2"}, {"LOCKSTEP_NUM_WORKERS", "4"}, {"LOCKSTEP_CHIEF_ADDRESS", "train-0.train:2222"}},
      {{"JOB_COMPLETION_INDEX", "2"},
       {"LOCKSTEP_NUM_WORKERS", "4"},
       {"MASTER_ADDR", "train-0.train"},
       {"MASTER_PORT", "2222"}},
      {{"JOB_COMPLETION_INDEX", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "train-0.train"}, {"MASTER_PORT", "2222"}}};
  for (const Variables& variables : rows) {
    const ClusterSpec spec = resolve(variables);
    EXPECT_EQ(spec.source, "Kubernetes");
    EXPECT_EQ(spec.num_workers(), 4);
    EXPECT_EQ(spec.worker_index(), 2);
    EXPECT_EQ(spec.chief_address(), "train-0.train:2222");
    EXPECT_TRUE(spec.disagreements.empty());
  }
  expect_error<ClusterError>(
      [] {
        resolve({{"JOB_COMPLETION_INDEX", "2"}, {"LOCKSTEP_NUM_WORKERS", "4"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"Kubernetes", "4 workers"});
  expect_error<ClusterError>(
      [] {
        resolve({{"JOB_COMPLETION_INDEX", "2"}, {"LOCKSTEP_CHIEF_ADDRESS", "a:1"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"LOCKSTEP_NUM_WORKERS"});
}

TEST(Kubernetes, AnIndexAloneIsAJobOfIndependentTasks) {
  const ClusterSpec spec = resolve({{"JOB_COMPLETION_INDEX", "2"}});
  EXPECT_EQ(spec.source, "alone");
  ASSERT_EQ(spec.disagreements.size(), 1u);
  EXPECT_NE(spec.disagreements[0].find("JOB_COMPLETION_INDEX=2"), std::string::npos) << spec.disagreements[0];
}

TEST(Kubernetes, NamesWhatIsMalformed) {
  for (const char* index : {"4", "x", "-1"}) {
    expect_error<ClusterError>(
        [&] {
          resolve({{"JOB_COMPLETION_INDEX", index}, {"LOCKSTEP_NUM_WORKERS", "4"}});
        },
        "LS-CLUSTER-VALUE", {"JOB_COMPLETION_INDEX", index});
  }
}

TEST(Kubernetes, TheExampleGivesEachPodItsPlace) {
  const std::string file = testing::text_of(LOCKSTEP_EXAMPLE_LAUNCHERS "/kubernetes.yaml");
  Variables variables;
  const std::regex entry(R"re(- name: (\w+)\n +(?:value: "?([^"\n]+)"?|valueFrom:))re");
  for (std::sregex_iterator one(file.begin(), file.end(), entry), end; one != end; ++one) {
    variables[(*one)[1]] = (*one)[2].matched ? (*one)[2].str() : "what the job's secret has";
  }
  std::smatch pods;
  ASSERT_TRUE(std::regex_search(file, pods, std::regex(R"(completions: (\d+)\n +parallelism: \1\n)"))) << file;
  std::smatch service;
  ASSERT_TRUE(std::regex_search(file, service, std::regex(R"(kind: Service\nmetadata:\n  name: (\w+)\n)"))) << file;
  std::smatch job;
  ASSERT_TRUE(std::regex_search(file, job, std::regex(R"(kind: Job\nmetadata:\n  name: (\w+)\n)"))) << file;
  const int count = std::stoi(pods[1]);
  for (int index = 0; index < count; ++index) {
    variables["JOB_COMPLETION_INDEX"] = std::to_string(index);
    const ClusterSpec spec = resolve(variables);
    EXPECT_EQ(spec.source, "Kubernetes");
    EXPECT_EQ(spec.num_workers(), count);
    EXPECT_EQ(spec.worker_index(), index);
    // The first pod's own address: the job's name and index in the service's domain.
    EXPECT_TRUE(spec.chief_address().starts_with(job[1].str() + "-0." + service[1].str() + ":"))
        << spec.chief_address();
    EXPECT_FALSE(spec.secret.is_empty());
    EXPECT_TRUE(spec.disagreements.empty());
  }
}

TEST(Kubernetes, IsNotAskedForAPlaceWhereALauncherInThePodSaysIt) {
  const ClusterSpec spec = resolve({{"JOB_COMPLETION_INDEX", "1"},
                                    {"LOCKSTEP_NUM_WORKERS", "8"},
                                    {"LOCKSTEP_WORKER_INDEX", "5"},
                                    {"LOCKSTEP_CHIEF_ADDRESS", "a:1"}});
  EXPECT_EQ(spec.source, "LOCKSTEP_*");
  EXPECT_EQ(spec.worker_index(), 5);
  EXPECT_TRUE(spec.disagreements.empty());
}

}  // namespace
}  // namespace lockstep
