#include "lockstep/cluster/job_counts.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline cluster {

namespace {

int64_t count_of(const ClusterSpec& spec, const std::string& job) {
  const auto found = spec.jobs.find(job);
  return found == spec.jobs.end() ? 0 : static_cast<int64_t>(found->second.size());
}

/// "Slurm (SLURM_STEP_NUM_TASKS=4)"
std::string source_of(const ClusterSpec& spec) {
  const std::string& origin = spec.origins.num_workers;
  return origin.empty() || origin == spec.source ? spec.source : fmt::format("{} ({})", spec.source, origin);
}

[[noreturn]] void contradict(const std::string& fact, const std::string& remedy) {
  throw ClusterError("LS-CLUSTER-SPEC", "the cluster's description contradicts itself: " + fact, remedy);
}

/// Of a description that names its jobs itself.
void compare(const ClusterSpec& spec, const JobCounts& counts) {
  if (counts.servers == 0 || counts.servers == count_of(spec, "ps")) return;
  contradict(fmt::format("{} has {} of the job 'ps', and there is {}", spec.source,
                         counted(count_of(spec, "ps"), "task"), counts.servers_by),
             fmt::format("unset one of them: {} names the job of each task itself", spec.source));
}

}  // namespace

void deal_jobs(ClusterSpec& spec, const JobCounts& counts) {
  if (counts.servers == 0 && !counts.has_evaluator) return;
  if (spec.job != "worker" || spec.jobs.size() > 1 || (spec.jobs.size() == 1 && !spec.jobs.contains("worker"))) {
    return compare(spec, counts);
  }
  const std::string asked = counts.servers == 0     ? counts.evaluator_by
                            : !counts.has_evaluator ? counts.servers_by
                                                    : counts.servers_by + " and " + counts.evaluator_by;
  if (spec.source == "alone") {
    throw ClusterError("LS-CLUSTER-INCOMPLETE",
                       fmt::format("there is {}, and nothing says how many tasks there are", asked),
                       "set LOCKSTEP_NUM_WORKERS to the number of all tasks and LOCKSTEP_WORKER_INDEX to this one's, "
                       "or start the program by: lockstep run --ps K -n W");
  }
  std::vector<std::string> addresses = spec.jobs["worker"];
  const auto tasks = static_cast<int64_t>(addresses.size());
  const int64_t chiefs = counts.servers > 0 ? 1 : 0;
  const int64_t evaluators = counts.has_evaluator ? 1 : 0;
  const int64_t workers = tasks - chiefs - counts.servers - evaluators;
  if (workers < 1) {
    contradict(
        fmt::format("{} counts {}, and there is {}", source_of(spec), counted(tasks, "task"), asked),
        fmt::format("start at least {} tasks: {}a worker{}{}", tasks + 1 - workers, chiefs > 0 ? "a chief, " : "",
                    counts.servers > 0 ? fmt::format(", {}", counted(counts.servers, "server")) : "",
                    evaluators > 0 ? ", an evaluator" : ""));
  }
  const int64_t number = spec.task;
  spec.jobs.clear();
  auto take = [&, next = int64_t{0}](const char* job, int64_t count) mutable {
    if (number >= next && number < next + count) {
      spec.job = job;
      spec.task = number - next;
    }
    const auto begin = addresses.begin() + next;
    if (count > 0 && std::string(job) != "evaluator") spec.jobs[job].assign(begin, begin + count);
    next += count;
  };
  take("chief", chiefs);
  take("worker", workers);
  take("ps", counts.servers);
  take("evaluator", evaluators);
}

void require_chief_and_workers(const ClusterSpec& spec) {
  const auto refuse = [&](const char* missing, const char* remedy) {
    contradict(fmt::format("{} has {} of the job 'ps', and {}", spec.source.empty() ? "it" : spec.source,
                           counted(count_of(spec, "ps"), "task"), missing),
               remedy);
  };
  if (count_of(spec, "chief") == 0) {
    refuse("none of 'chief', which schedules the steps", R"(add one: "chief": ["host:port"])");
  }
  if (count_of(spec, "worker") == 0) refuse("none of 'worker'", R"(add one or more: "worker": ["host:port"])");
}

}  // namespace lockstep::internal::cluster
