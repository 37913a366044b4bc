// The parts of `lockstep run --ps` that decide and do nothing.
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"
#include "tools/run/task_rules.h"
#include "tools/run/tasks.h"
#include "tools/run/worker/worker_environment.h"

namespace {

using lockstep::ClusterSpec;
using lockstep::UsageError;
using lockstep::testing::expect_error;
using lockstep::tools::after_end;
using lockstep::tools::AfterEnd;
using lockstep::tools::deal_tasks;
using lockstep::tools::HostLine;
using lockstep::tools::name_of;
using lockstep::tools::Task;
using lockstep::tools::task_at;
using lockstep::tools::TaskCounts;
using lockstep::tools::TaskRole;
using lockstep::tools::TaskSituation;
using lockstep::tools::WorkerEnd;

constexpr TaskCounts kCounts = {.workers = 3, .servers = 2, .has_evaluator = true};

TEST(Tasks, AreTheChiefThenWorkersThenServers) {
  std::vector<std::string> names;
  for (int i = 0; i < kCounts.numbered(); ++i) names.push_back(name_of(task_at(kCounts, i)));
  EXPECT_EQ(names, (std::vector<std::string>{"chief", "worker 0", "worker 1", "worker 2", "ps 0", "ps 1"}));
  EXPECT_EQ(name_of({TaskRole::kEvaluator, 0}), "evaluator");
}

TEST(Tasks, TfConfigSaysToEachWhatItIs) {
  const std::vector<std::string> addresses = {"a:1", "a:2", "a:3", "a:4", "b:1", "b:2"};
  for (int i = 0; i < kCounts.numbered(); ++i) {
    const std::string config = tf_config_of(kCounts, addresses, task_at(kCounts, i));
    const ClusterSpec spec = lockstep::resolve_cluster({}, lockstep::Environment({{"TF_CONFIG", config}}));
    EXPECT_EQ(spec.source, "TF_CONFIG");
    EXPECT_EQ(spec.address(), addresses[static_cast<std::size_t>(i)]);
    EXPECT_EQ(spec.job + " " + std::to_string(spec.task), name_of(task_at(kCounts, i)) + (i == 0 ? " 0" : ""));
    EXPECT_EQ(spec.jobs.at("worker").size(), 3u);
    EXPECT_EQ(spec.jobs.at("ps").size(), 2u);
  }
  const std::string config = tf_config_of(kCounts, addresses, {TaskRole::kEvaluator, 0});
  const ClusterSpec spec = lockstep::resolve_cluster({}, lockstep::Environment({{"TF_CONFIG", config}}));
  EXPECT_EQ(spec.job, "evaluator");
  EXPECT_FALSE(spec.jobs.contains("evaluator"));
}

std::vector<HostLine> hosts(const std::vector<int>& slots) {
  std::vector<HostLine> lines;
  for (const int one : slots) lines.push_back({lines.size() + 1, "n" + std::to_string(lines.size()), one});
  return lines;
}

std::vector<int> counts_of(const std::vector<int>& slots) {
  std::vector<int> counts;
  int next = 0;
  for (const auto& block : deal_tasks(kCounts, hosts(slots))) {
    EXPECT_EQ(block.first, next);
    next += block.count;
    counts.push_back(block.count);
  }
  EXPECT_EQ(next, kCounts.numbered());
  return counts;
}

TEST(Tasks, AreDealtToHostsInBlocks) {
  EXPECT_EQ(counts_of({0}), std::vector<int>{6});
  EXPECT_EQ(counts_of({0, 0, 0, 0}), (std::vector<int>{2, 2, 1, 1}));
  EXPECT_EQ(counts_of({1, 0, 0}), (std::vector<int>{1, 3, 2}));
  EXPECT_EQ(counts_of({4, 2}), (std::vector<int>{4, 2}));
  for (const auto& slots : std::vector<std::vector<int>>{{4, 3}, {4, 1}, {6, 0}, {0, 0, 0, 0, 0, 0, 0}}) {
    expect_error<UsageError>([&] { deal_tasks(kCounts, hosts(slots)); }, "LS-HOSTS", {"6 tasks", "slots"});
  }
}

TEST(Tasks, LoseWhatSaysSomethingElseAboutThem) {
  const std::vector<std::string> outer = {
      "RANK=1",     "LOCKSTEP_NUM_WORKERS=4", "LOCKSTEP_PS=1", "TF_CONFIG=x", "SLURM_PROCID=1",
      "HOME=/root", "LOCKSTEP_SECRET_FILE=f"};
  auto environment = lockstep::tools::task_environment(
      outer, {.tf_config = "{}", .job_id = "j", .secret = "s", .stop_notices = "3:4", .restart_count = 2, .epoch = 1});
  const std::set<std::string> expected = {"HOME=/root",
                                          "TF_CONFIG={}",
                                          "LOCKSTEP_JOB_ID=j",
                                          "LOCKSTEP_SECRET=s",
                                          "LOCKSTEP_EPOCH=1",
                                          "LOCKSTEP_RESTART_COUNT=2",
                                          "LOCKSTEP_STOP_SOCKET=3:4"};
  EXPECT_EQ(std::set<std::string>(environment.begin(), environment.end()), expected);
  lockstep::tools::change_variable(environment, "LOCKSTEP_RESTART_COUNT", "7");
  EXPECT_EQ(std::count(environment.begin(), environment.end(), "LOCKSTEP_RESTART_COUNT=7"), 1);
}

WorkerEnd exited(int code) { return {0, 1, WorkerEnd::Kind::kExited, code, 0}; }
const WorkerEnd kKilled = {0, 1, WorkerEnd::Kind::kSignalled, SIGKILL, 0};

TEST(TaskRules, TheChiefsEndIsTheJobs) {
  for (const int restarts : {0, 3}) {
    EXPECT_EQ(after_end(TaskRole::kChief, exited(0), {.restarts_left = restarts}), AfterEnd::kEnd);
    EXPECT_EQ(after_end(TaskRole::kChief, exited(1), {.restarts_left = restarts}), AfterEnd::kFailure);
    EXPECT_EQ(after_end(TaskRole::kChief, kKilled, {.restarts_left = restarts}), AfterEnd::kFailure);
  }
}

TEST(TaskRules, AWorkerIsStartedAgainAloneWhileThatMayHelp) {
  for (const WorkerEnd& end : {kKilled, exited(1), exited(75), exited(70)}) {
    EXPECT_EQ(after_end(TaskRole::kWorker, end, {.restarts_left = 1}), AfterEnd::kStartAgain);
    EXPECT_EQ(after_end(TaskRole::kWorker, end, {.has_other_worker = false, .restarts_left = 1}),
              AfterEnd::kStartAgain);
    EXPECT_EQ(after_end(TaskRole::kWorker, end, {}), AfterEnd::kGoOnWithout);
    EXPECT_EQ(after_end(TaskRole::kWorker, end, {.has_other_worker = false}), AfterEnd::kFailure);
    EXPECT_EQ(after_end(TaskRole::kWorker, end, {.has_ended = true, .restarts_left = 1}), AfterEnd::kNothing);
  }
  for (const int code : {2, 65, 78, 126, 127}) {
    EXPECT_EQ(after_end(TaskRole::kWorker, exited(code), {.restarts_left = 1}), AfterEnd::kFailure) << code;
  }
  EXPECT_EQ(after_end(TaskRole::kWorker, exited(0), {.restarts_left = 1}), AfterEnd::kNothing);
}

TEST(TaskRules, AServerTakesTheJobWithIt) {
  for (const WorkerEnd& end : {kKilled, exited(1), exited(75)}) {
    EXPECT_EQ(after_end(TaskRole::kServer, end, {.restarts_left = 1}), AfterEnd::kFailure);
    EXPECT_EQ(after_end(TaskRole::kServer, end, {.has_ended = true}), AfterEnd::kNothing);
  }
  EXPECT_EQ(after_end(TaskRole::kServer, exited(0), {}), AfterEnd::kNothing) << "it may end just before the chief";
  EXPECT_EQ(after_end(TaskRole::kServer, exited(0), {.has_chief = false}), AfterEnd::kEnd);
  EXPECT_EQ(after_end(TaskRole::kServer, exited(0), {.has_ended = true, .has_chief = false}), AfterEnd::kNothing);
}

TEST(TaskRules, TheEvaluatorNeverEndsTheJob) {
  for (const WorkerEnd& end : {kKilled, exited(1), exited(2)}) {
    for (const bool has_ended : {false, true}) {
      EXPECT_EQ(after_end(TaskRole::kEvaluator, end, {.has_ended = has_ended}), AfterEnd::kGoOnWithout);
    }
  }
  EXPECT_EQ(after_end(TaskRole::kEvaluator, kKilled, {.has_ended = true, .restarts_left = 1}), AfterEnd::kStartAgain);
  EXPECT_EQ(after_end(TaskRole::kEvaluator, exited(2), {.restarts_left = 1}), AfterEnd::kGoOnWithout);
  EXPECT_EQ(after_end(TaskRole::kEvaluator, exited(0), {.restarts_left = 1}), AfterEnd::kNothing);
}

TEST(TaskRules, NobodyIsStartedAgainWhereTheJobWasAskedToEnd) {
  const TaskSituation asked{.was_asked = true, .restarts_left = 5};
  EXPECT_EQ(after_end(TaskRole::kWorker, exited(75), asked), AfterEnd::kNothing) << "as it was asked to";
  EXPECT_EQ(after_end(TaskRole::kServer, exited(75), asked), AfterEnd::kNothing);
  EXPECT_EQ(after_end(TaskRole::kWorker, exited(1), asked), AfterEnd::kFailure);
  EXPECT_EQ(after_end(TaskRole::kEvaluator, exited(1), asked), AfterEnd::kNothing);
}

}  // namespace
