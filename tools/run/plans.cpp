#include "tools/run/plans.h"

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/cluster/address.h"
#include "lockstep/replica/pool/cores.h"
#include "tools/run/core_shares.h"
#include "tools/run/worker/worker_environment.h"

namespace lockstep::tools {

namespace {

std::vector<std::string> environment_of_this_process() {
  std::vector<std::string> result;
  for (char** variable = environ; *variable != nullptr; ++variable) result.emplace_back(*variable);
  return result;
}

/// Where each numbered task of the job is.
std::vector<std::string> addresses_of(const Job& job, const std::vector<uint16_t>& ports) {
  std::vector<std::string> addresses;
  for (std::size_t number = 0; number < job.places.size(); ++number) {
    addresses.push_back(internal::to_string(internal::Address{job.places[number].host, ports[number]}));
  }
  return addresses;
}

std::vector<WorkerPlan> task_plans_of(const RunOptions& options, const Job& job, const StartFacts& facts) {
  const std::vector<std::string> outer = environment_of_this_process();
  const TaskCounts& counts = *job.tasks;
  const std::vector<std::string> addresses = addresses_of(job, facts.ports);
  std::vector<WorkerPlan> plans;
  const auto add = [&](const Task& task) {
    const bool is_evaluator = task.role == TaskRole::kEvaluator;
    const TaskIdentity identity{.tf_config = tf_config_of(counts, addresses, task),
                                .job_id = job.id,
                                .secret = facts.secret,
                                .stop_notices = facts.stop_notices,
                                .end_notice = is_evaluator ? facts.end_notice : "",
                                .restart_count = facts.restarts,
                                .epoch = facts.epoch};
    // Nobody is pinned: the chief and the servers work while workers wait for them.
    plans.push_back({static_cast<int>(plans.size()),
                     task_environment(outer, identity),
                     {},
                     options.prefix ? fmt::format("[{}] ", name_of(task)) : "",
                     task});
  };
  for (int i = 0; i < job.share.workers; ++i) add(task_at(counts, job.share.first_worker + i));
  // Beside the chief, whose launcher alone knows when training has ended.
  if (counts.has_evaluator && job.share.host == 0) add({TaskRole::kEvaluator, 0});
  return plans;
}

}  // namespace

int ports_of(const Job& job) { return job.tasks ? job.tasks->numbered() : 1; }

std::vector<WorkerPlan> plans_of(const RunOptions& options, const Job& job, const StartFacts& facts) {
  if (job.tasks) return task_plans_of(options, job, facts);
  const std::vector<std::string> outer = environment_of_this_process();
  const auto cores =
      core_shares(options.pin ? internal::cores_of_this_process() : std::vector<int>(), job.share.workers);
  WorkerIdentity worker = {.share = job.share,
                           .chief_host = job.chief_host,
                           .port = facts.ports.front(),
                           .job_id = job.id,
                           .secret = facts.secret,
                           .stop_notices = facts.stop_notices,
                           .restart_count = facts.restarts,
                           .max_restarts = options.max_restarts};
  std::vector<WorkerPlan> plans;
  for (int i = 0; i < job.share.workers; ++i) {
    worker.local = i;
    const int index = job.share.first_worker + i;
    plans.push_back({index, worker_environment(outer, worker), cores[static_cast<std::size_t>(i)],
                     options.prefix ? fmt::format("[{}] ", index) : ""});
  }
  return plans;
}

TaskSettings settings_of(const RunOptions& options, const Job& job, int restarts, EndNotice* end_notice) {
  TaskSettings settings{.restarts_before = restarts,
                        .max_restarts = options.max_restarts,
                        .restart_pause = options.restart_pause,
                        .end_notice = end_notice};
  if (!job.tasks) return settings;
  const int last = job.share.first_worker + job.share.workers - 1;
  settings.has_chief = job.share.first_worker == 0;
  settings.has_all_workers = job.share.first_worker <= 1 && last >= job.tasks->workers;
  return settings;
}

}  // namespace lockstep::tools
