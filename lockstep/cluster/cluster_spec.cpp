#include "lockstep/cluster/cluster_spec.h"

#include <fmt/format.h>

#include "lockstep/cluster/address.h"
#include "lockstep/cluster/named_text.h"
#include "lockstep/core/error.h"

namespace lockstep {

namespace {

constexpr std::size_t kLongestJobId = 256;  // bytes

const std::vector<std::string>& tasks_of(const ClusterSpec& spec, const std::string& job) {
  static const std::vector<std::string> none;
  const auto found = spec.jobs.find(job);
  return found == spec.jobs.end() ? none : found->second;
}

int64_t count_of(const ClusterSpec& spec, const std::string& job) {
  return static_cast<int64_t>(tasks_of(spec, job).size());
}

[[noreturn]] void contradiction(const ClusterSpec& spec, const std::string& fact, const std::string& remedy) {
  const std::string by = spec.source.empty() ? "" : " by " + spec.source;
  throw ClusterError("LS-CLUSTER-SPEC", fmt::format("the cluster's description{} contradicts itself: {}", by, fact),
                     remedy);
}

void check_counts(const ClusterSpec& spec) {
  int64_t tasks = 0;
  for (const auto& [job, addresses] : spec.jobs) {
    if (job != "worker" && job != "chief" && job != "ps" && job != "evaluator") {
      contradiction(spec, fmt::format("there is a job {}", internal::in_quotes(job)),
                    "name the jobs worker, chief, ps and evaluator");
    }
    tasks += static_cast<int64_t>(addresses.size());
  }
  for (const char* job : {"chief", "evaluator"}) {
    if (count_of(spec, job) > 1) {
      contradiction(spec, fmt::format("the job '{}' has {} tasks", job, count_of(spec, job)),
                    fmt::format("give '{}' one task", job));
    }
  }
  if (tasks > internal::kMostTasks) {
    contradiction(spec, fmt::format("it has {} tasks", tasks), fmt::format("give it at most {}", internal::kMostTasks));
  }
  if (tasks > 0 && spec.job != "evaluator" && count_of(spec, "chief") + count_of(spec, "worker") == 0) {
    contradiction(spec, "it has tasks, and none of them is a worker", "add the job 'worker'");
  }
}

void check_own_task(const ClusterSpec& spec) {
  // An evaluator need not stand in the description, and a description without jobs is of one worker.
  int64_t count = count_of(spec, spec.job);
  if (spec.job == "evaluator" || (spec.jobs.empty() && spec.job == "worker")) count = 1;
  if (count == 0) {
    contradiction(spec, fmt::format("this process is of the job {}, which has no tasks", internal::in_quotes(spec.job)),
                  "let the task's job be one of the cluster's");
  }
  if (spec.task < 0 || spec.task >= count) {
    contradiction(spec,
                  fmt::format("this process is task {} of '{}', which has {} task{}", spec.task, spec.job, count,
                              count == 1 ? "" : "s"),
                  fmt::format("give this process a task from 0 to {}", count - 1));
  }
  if (spec.local_worker < 0 || spec.local_worker >= internal::kMostTasks) {
    contradiction(spec, fmt::format("this process is worker {} of its host", spec.local_worker),
                  fmt::format("count the workers of a host from 0 to {}", internal::kMostTasks - 1));
  }
}

void check_addresses(const ClusterSpec& spec) {
  std::map<std::string, std::string> owners;
  for (const auto& [job, addresses] : spec.jobs) {
    for (std::size_t task = 0; task < addresses.size(); ++task) {
      if (addresses[task].empty()) continue;
      const std::string name = fmt::format("the address of '{}' task {}", job, task);
      const std::string address = internal::to_string(internal::parse_address({name, addresses[task]}));
      const auto [other, is_new] = owners.emplace(address, fmt::format("'{}' task {}", job, task));
      if (!is_new) {
        contradiction(spec,
                      fmt::format("{} and '{}' task {} have the same address, {}", other->second, job, task, address),
                      "give each task an address of its own");
      }
    }
  }
}

}  // namespace

int64_t ClusterSpec::num_workers() const {
  if (job == "evaluator" || jobs.empty()) return 1;
  return count_of(*this, "chief") + count_of(*this, "worker");
}

int64_t ClusterSpec::worker_index() const {
  if (job == "ps") {
    throw UsageError("LS-CLUSTER-NO-WORKER", fmt::format("this process is task {} of 'ps', which is no worker", task),
                     "make a ParameterServerStrategy, which runs on all tasks, or look at ClusterSpec::job first");
  }
  return job == "worker" ? task + count_of(*this, "chief") : task;
}

bool ClusterSpec::is_chief() const {
  if (job == "chief" || job == "evaluator") return true;
  return job == "worker" && task == 0 && count_of(*this, "chief") == 0;
}

std::string ClusterSpec::chief_address() const {
  if (job == "evaluator") return "";
  const auto& tasks = tasks_of(*this, count_of(*this, "chief") > 0 ? "chief" : "worker");
  return tasks.empty() ? "" : tasks.front();
}

std::string ClusterSpec::address() const {
  const auto& tasks = tasks_of(*this, job);
  return task >= 0 && task < static_cast<int64_t>(tasks.size()) ? tasks[static_cast<std::size_t>(task)] : "";
}

void ClusterSpec::validate() const {
  check_counts(*this);
  check_own_task(*this);
  check_addresses(*this);
  const internal::NamedText id{"the job's id", job_id};
  for (std::size_t at = 0; at < job_id.size(); ++at) {
    if (job_id[at] < 0x21 || job_id[at] > 0x7e || at >= kLongestJobId) {
      internal::throw_malformed(id, at, fmt::format("at most {} printable characters without spaces", kLongestJobId));
    }
  }
}

}  // namespace lockstep
