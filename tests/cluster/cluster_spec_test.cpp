#include "lockstep/cluster/cluster_spec.h"

#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using Jobs = std::map<std::string, std::vector<std::string>>;

const Jobs kWithChief = {{"chief", {"a:1"}}, {"worker", {"b:1", "c:1"}}, {"ps", {"d:1"}}};
const Jobs kWithoutChief = {{"worker", {"a:1", "b:1"}}, {"ps", {"d:1"}}};

TEST(ClusterSpec, WithoutJobsIsOneWorker) {
  const ClusterSpec spec;
  spec.validate();
  EXPECT_EQ(spec.num_workers(), 1);
  EXPECT_EQ(spec.worker_index(), 0);
  EXPECT_TRUE(spec.is_chief());
  EXPECT_EQ(spec.chief_address(), "");
  EXPECT_EQ(spec.address(), "");
}

TEST(ClusterSpec, CountsAndNumbersWorkersByTensorFlowsRules) {
  struct Row {
    Jobs jobs;
    const char* job;
    int64_t task, num_workers, worker_index;
    bool is_chief;
    const char* chief_address;
    const char* address;
  };
  const Row rows[] = {{kWithChief, "chief", 0, 3, 0, true, "a:1", "a:1"},
                      {kWithChief, "worker", 0, 3, 1, false, "a:1", "b:1"},
                      {kWithChief, "worker", 1, 3, 2, false, "a:1", "c:1"},
                      {kWithChief, "evaluator", 0, 1, 0, true, "", ""},
                      {kWithoutChief, "worker", 0, 2, 0, true, "a:1", "a:1"},
                      {kWithoutChief, "worker", 1, 2, 1, false, "a:1", "b:1"},
                      {{{"worker", {"", "", ""}}}, "worker", 2, 3, 2, false, "", ""},
                      {{{"worker", {"a:1"}}, {"evaluator", {"e:1"}}}, "evaluator", 0, 1, 0, true, "", "e:1"}};
  for (const Row& row : rows) {
    const ClusterSpec spec{.jobs = row.jobs, .job = row.job, .task = row.task};
    spec.validate();
    EXPECT_EQ(spec.num_workers(), row.num_workers) << row.job;
    EXPECT_EQ(spec.worker_index(), row.worker_index) << row.job;
    EXPECT_EQ(spec.is_chief(), row.is_chief) << row.job;
    EXPECT_EQ(spec.chief_address(), row.chief_address) << row.job;
    EXPECT_EQ(spec.address(), row.address) << row.job;
  }
}

TEST(ClusterSpec, AParameterServerIsNoWorker) {
  const ClusterSpec spec{.jobs = kWithChief, .job = "ps"};
  spec.validate();
  EXPECT_FALSE(spec.is_chief());
  EXPECT_EQ(spec.num_workers(), 3);
  EXPECT_EQ(spec.chief_address(), "a:1");
  expect_error<UsageError>([&] { spec.worker_index(); }, "LS-CLUSTER-NO-WORKER", {"task 0 of 'ps'"});
}

TEST(ClusterSpec, NamesWhatContradictsItself) {
  struct Row {
    ClusterSpec spec;
    std::vector<std::string_view> values;
  };
  const Row rows[] = {
      {{.jobs = {{"worker", {"a:1"}}, {"master", {"b:1"}}}}, {"'master'"}},
      {{.jobs = {{"worker", {"a:1"}}, {"chief", {"b:1", "c:1"}}}}, {"'chief'", "2 tasks"}},
      {{.jobs = {{"worker", {"a:1"}}, {"evaluator", {"b:1", "c:1"}}}}, {"'evaluator'", "2 tasks"}},
      {{.jobs = {{"worker", {"a:1"}}}, .job = "gpu"}, {"'gpu'"}},
      {{.jobs = {{"worker", {"a:1"}}}, .job = "chief"}, {"'chief'"}},
      {{.jobs = {{"worker", {"a:1"}}}, .job = "ps"}, {"'ps'"}},
      {{.jobs = {{"worker", {"a:1"}}}, .task = 1}, {"task 1", "1 task"}},
      {{.jobs = {{"worker", {"a:1"}}}, .task = -1}, {"task -1"}},
      {{.jobs = {{"worker", {"a:1"}}}, .job = "evaluator", .task = 1}, {"task 1", "'evaluator'"}},
      {{.task = 1}, {"task 1"}},
      {{.jobs = {{"ps", {"a:1"}}}, .job = "ps"}, {"none of them is a worker"}},
      {{.jobs = {{"worker", std::vector<std::string>(65537)}}}, {"65537 tasks"}},
      {{.jobs = {{"worker", {"a:1", "b:1", "a:1"}}}}, {"'worker' task 0", "'worker' task 2", "a:1"}},
      {{.jobs = {{"worker", {"a:1"}}, {"ps", {"a:01"}}}}, {"'ps' task 0", "'worker' task 0", "a:1"}},
      {{.local_worker = -1}, {"worker -1 of its host"}},
  };
  for (const Row& row : rows) {
    const auto error = testing::caught_from<ClusterError>([&] { row.spec.validate(); });
    if (!error) continue;
    EXPECT_EQ(error->code(), "LS-CLUSTER-SPEC") << error->what();
    for (const auto value : row.values) EXPECT_TRUE(testing::has_value(error->what(), value)) << error->what();
  }
}

TEST(ClusterSpec, NamesMalformedAddressesAndIds) {
  expect_error<ClusterError>(
      [] {
        ClusterSpec{.jobs = {{"worker", {"a:1", "b"}}}}.validate();
      },
      "LS-CLUSTER-VALUE", {"'worker' task 1", "'b'"});
  expect_error<ClusterError>([] { ClusterSpec{.job_id = "my job"}.validate(); }, "LS-CLUSTER-VALUE", {"offset 2"});
  expect_error<ClusterError>([] { ClusterSpec{.job_id = std::string(257, 'a')}.validate(); }, "LS-CLUSTER-VALUE");
  ClusterSpec{.job_id = std::string(256, 'a')}.validate();
}

}  // namespace
}  // namespace lockstep
