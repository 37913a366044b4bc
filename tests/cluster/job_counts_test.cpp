// LOCKSTEP_PS and LOCKSTEP_EVALUATOR: jobs of launchers that count tasks only.
#include "lockstep/cluster/job_counts.h"

#include <gtest/gtest.h>

#include <string>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using Variables = Environment::Variables;

ClusterSpec resolve(const Variables& variables, const ClusterOptions& options = {}) {
  return resolve_cluster(options, Environment(variables));
}

Variables task_of(int64_t index, int64_t count, Variables more) {
  more["LOCKSTEP_NUM_WORKERS"] = std::to_string(count);
  more["LOCKSTEP_WORKER_INDEX"] = std::to_string(index);
  more["LOCKSTEP_CHIEF_ADDRESS"] = "node1:2222";
  return more;
}

std::string name_of(const ClusterSpec& spec) { return spec.job + " " + std::to_string(spec.task); }

TEST(JobCounts, TheFirstTaskIsTheChiefAndTheLastOnesAreServers) {
  const std::string expected[] = {"chief 0", "worker 0", "worker 1", "worker 2", "ps 0", "ps 1"};
  for (int64_t i = 0; i < 6; ++i) {
    const ClusterSpec spec = resolve(task_of(i, 6, {{"LOCKSTEP_PS", "2"}}));
    EXPECT_EQ(name_of(spec), expected[i]);
    EXPECT_EQ(spec.jobs.at("chief"), std::vector<std::string>{"node1:2222"});
    EXPECT_EQ(spec.jobs.at("worker").size(), 3u);
    EXPECT_EQ(spec.jobs.at("ps").size(), 2u);
    EXPECT_EQ(spec.is_chief(), i == 0);
    EXPECT_EQ(spec.chief_address(), "node1:2222");
    EXPECT_NO_THROW(spec.validate());
    EXPECT_NO_THROW(internal::require_chief_and_workers(spec));
  }
}

TEST(JobCounts, TheLastTaskOfAllIsTheEvaluatorWhomNobodyLists) {
  const Variables both = {{"LOCKSTEP_PS", "1"}, {"LOCKSTEP_EVALUATOR", "1"}};
  const std::string expected[] = {"chief 0", "worker 0", "ps 0", "evaluator 0"};
  for (int64_t i = 0; i < 4; ++i) {
    const ClusterSpec spec = resolve(task_of(i, 4, both));
    EXPECT_EQ(name_of(spec), expected[i]);
    EXPECT_FALSE(spec.jobs.contains("evaluator"));
    EXPECT_EQ(spec.jobs.at("worker").size(), 1u);
  }
  const ClusterSpec last = resolve(task_of(2, 3, {{"LOCKSTEP_EVALUATOR", "1"}}));
  EXPECT_EQ(name_of(last), "evaluator 0");
  EXPECT_EQ(last.jobs.at("worker").size(), 2u);
  EXPECT_FALSE(last.jobs.contains("chief"));
}

TEST(JobCounts, HoldForEachLauncherThatCountsTasks) {
  const Variables slurm = {{"SLURM_JOB_ID", "1"},
                           {"SLURM_STEP_ID", "0"},
                           {"SLURM_PROCID", "3"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_NODEID", "1"},
                           {"SLURM_STEP_NUM_TASKS", "4"},
                           {"SLURM_STEP_NODELIST", "n[1-2]"},
                           {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                           {"LOCKSTEP_PS", "1"}};
  const ClusterSpec by_slurm = resolve(slurm);
  EXPECT_EQ(name_of(by_slurm), "ps 0");
  EXPECT_TRUE(by_slurm.address().starts_with("n2:")) << by_slurm.address();
  EXPECT_TRUE(by_slurm.chief_address().starts_with("n1:")) << by_slurm.chief_address();
  EXPECT_EQ(by_slurm.jobs.at("worker").size(), 2u);
  const ClusterSpec by_kubernetes = resolve({{"JOB_COMPLETION_INDEX", "1"},
                                             {"LOCKSTEP_NUM_WORKERS", "3"},
                                             {"LOCKSTEP_CHIEF_ADDRESS", "train-0.train:2222"},
                                             {"LOCKSTEP_PS", "1"}});
  EXPECT_EQ(name_of(by_kubernetes), "worker 0");
  EXPECT_EQ(by_kubernetes.source, "Kubernetes");
  const ClusterSpec by_options =
      resolve({{"LOCKSTEP_PS", "5"}},
              {.num_workers = 4, .worker_index = 3, .chief_address = "a:1", .servers = 1, .evaluator = true});
  EXPECT_EQ(name_of(by_options), "evaluator 0");
}

TEST(JobCounts, TooFewTasksAreRefusedWithBothNumbers) {
  expect_error<ClusterError>(
      [] {
        resolve(task_of(1, 3, {{"LOCKSTEP_PS", "2"}}));
      },
      "LS-CLUSTER-SPEC", {"LOCKSTEP_NUM_WORKERS=3", "3 tasks", "LOCKSTEP_PS=2", "at least 4"});
  expect_error<ClusterError>(
      [] {
        resolve(task_of(1, 3, {{"LOCKSTEP_PS", "1"}, {"LOCKSTEP_EVALUATOR", "1"}}));
      },
      "LS-CLUSTER-SPEC", {"LOCKSTEP_PS=1 and LOCKSTEP_EVALUATOR=1", "at least 4", "an evaluator"});
  expect_error<ClusterError>(
      [] {
        resolve({{"LOCKSTEP_PS", "1"}});
      },
      "LS-CLUSTER-INCOMPLETE", {"LOCKSTEP_PS=1", "LOCKSTEP_NUM_WORKERS", "--ps"});
  expect_error<ClusterError>(
      [] {
        resolve(task_of(1, 3, {{"LOCKSTEP_PS", "one"}}));
      },
      "LS-CLUSTER-VALUE", {"LOCKSTEP_PS", "'one'"});
  expect_error<ClusterError>([] { resolve(task_of(1, 3, {}), {.servers = -1}); }, "LS-CLUSTER-SPEC", {".servers = -1"});
  EXPECT_EQ(name_of(resolve(task_of(1, 3, {{"LOCKSTEP_PS", "0"}, {"LOCKSTEP_EVALUATOR", "0"}}))), "worker 1");
}

TEST(JobCounts, ADescriptionWithJobsOfItsOwnMustHaveAsManyServers) {
  const std::string config = R"({"cluster":{"chief":["a:1"],"worker":["b:1"],"ps":["c:1","d:1"]},)"
                             R"("task":{"type":"ps","index":1}})";
  const ClusterSpec spec = resolve({{"TF_CONFIG", config}, {"LOCKSTEP_PS", "2"}, {"LOCKSTEP_EVALUATOR", "1"}});
  EXPECT_EQ(name_of(spec), "ps 1");
  expect_error<ClusterError>(
      [&] {
        resolve({{"TF_CONFIG", config}, {"LOCKSTEP_PS", "3"}});
      },
      "LS-CLUSTER-SPEC", {"TF_CONFIG has 2 tasks of the job 'ps'", "LOCKSTEP_PS=3"});
}

TEST(JobCounts, ServersNeedAChiefAndAWorker) {
  expect_error<ClusterError>(
      [] {
        internal::require_chief_and_workers(
            {.jobs = {{"worker", {"a:1"}}, {"ps", {"b:1", "c:1"}}}, .source = "by hand"});
      },
      "LS-CLUSTER-SPEC", {"by hand has 2 tasks of the job 'ps'", "none of 'chief'"});
  expect_error<ClusterError>(
      [] {
        internal::require_chief_and_workers({.jobs = {{"chief", {"a:1"}}, {"ps", {"b:1"}}}, .job = "chief"});
      },
      "LS-CLUSTER-SPEC", {"1 task of the job 'ps'", "none of 'worker'"});
}

TEST(JobCounts, TheEvaluatorMayBeListedAndNobodyWaitsForIt) {
  const std::string config = R"({"cluster":{"chief":["a:1"],"worker":["b:1"],"ps":["c:1"],"evaluator":["d:1"]},)"
                             R"("task":{"type":"worker","index":0}})";
  const ClusterSpec spec = resolve({{"TF_CONFIG", config}});
  EXPECT_EQ(spec.num_workers(), 2) << "the chief and the worker";
  EXPECT_NO_THROW(internal::require_chief_and_workers(spec));
}

}  // namespace
}  // namespace lockstep
