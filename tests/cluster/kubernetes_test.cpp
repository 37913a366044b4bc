// Indexed jobs of Kubernetes.
#include <gtest/gtest.h>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"

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
