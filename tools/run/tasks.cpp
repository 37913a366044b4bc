#include "tools/run/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"

namespace lockstep::tools {

namespace {

/// The job's name in TF_CONFIG.
const char* job_of(TaskRole role) {
  switch (role) {
    case TaskRole::kPeer:
    case TaskRole::kWorker: return "worker";
    case TaskRole::kChief: return "chief";
    case TaskRole::kServer: return "ps";
    case TaskRole::kEvaluator: return "evaluator";
  }
  return "";
}

std::string in_words(const TaskCounts& counts) {
  return fmt::format("{} tasks (the chief, -n {} workers, --ps {} servers)", counts.numbered(), counts.workers,
                     counts.servers);
}

}  // namespace

std::string name_of(const Task& task) {
  if (task.role == TaskRole::kChief || task.role == TaskRole::kEvaluator) return job_of(task.role);
  return fmt::format("{} {}", job_of(task.role), task.index);
}

Task task_at(const TaskCounts& counts, int number) {
  if (number == 0) return {TaskRole::kChief, 0};
  if (number <= counts.workers) return {TaskRole::kWorker, number - 1};
  return {TaskRole::kServer, number - 1 - counts.workers};
}

std::vector<TaskBlock> deal_tasks(const TaskCounts& counts, const std::vector<HostLine>& hosts) {
  int64_t slots = 0;
  int open = 0;  // lines without slots
  for (const HostLine& host : hosts) {
    slots += host.slots;
    if (host.slots == 0) ++open;
  }
  const int64_t left = counts.numbered() - slots;
  if (left < open || (open == 0 && left != 0)) {
    throw UsageError("LS-HOSTS",
                     fmt::format("the job has {}, and the hosts file has {} slots on {} of its {} hosts",
                                 in_words(counts), slots, hosts.size() - static_cast<std::size_t>(open), hosts.size()),
                     "let the slots add up to the number of tasks, or leave them out where tasks are to be shared");
  }
  std::vector<TaskBlock> blocks;
  int next = 0;
  int64_t nth = 0;  // of the lines without slots
  for (const HostLine& host : hosts) {
    int count = host.slots;
    if (count == 0) {
      count = static_cast<int>(left / open + (nth < left % open ? 1 : 0));
      ++nth;
    }
    if (count > kMostLocalWorkers) {
      throw UsageError("LS-HOSTS", fmt::format("host '{}' would get {} tasks", host.host, count),
                       fmt::format("give it at most {}", kMostLocalWorkers));
    }
    blocks.push_back({next, count});
    next += count;
  }
  return blocks;
}

std::string tf_config_of(const TaskCounts& counts, const std::vector<std::string>& addresses, const Task& task) {
  const auto at = [&](int first, int count) {
    const auto begin = addresses.begin() + first;
    return std::vector<std::string>(begin, begin + count);
  };
  const nlohmann::ordered_json config = {
      {"cluster",
       {{"chief", at(0, 1)}, {"worker", at(1, counts.workers)}, {"ps", at(1 + counts.workers, counts.servers)}}},
      {"task", {{"type", job_of(task.role)}, {"index", task.index}}}};
  return config.dump();
}

}  // namespace lockstep::tools
