// TF_CONFIG: a JSON text with all tasks of all jobs, and which of them this process is.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/cluster/named_text.h"
#include "lockstep/cluster/sources.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline cluster {

namespace {

using nlohmann::json;

constexpr const char* kName = "TF_CONFIG";
constexpr std::size_t kLongest = 1 << 20;  // bytes
constexpr int kDeepest = 8;                // objects and lists within each other

/// What stands at `path`, such as "cluster.worker[1]", is not what is expected.
[[noreturn]] void wrong(const std::string& path, const json& found, const std::string& expected) {
  throw ClusterError(
      "LS-CLUSTER-VALUE",
      fmt::format("TF_CONFIG: at {} stands {}, and {} is expected", path, in_quotes(found.dump()), expected),
      fmt::format("correct {} of TF_CONFIG, or unset TF_CONFIG", path));
}

/// The parsed text. Also refused is what a parser would let pass: deep nesting, and a key that stands twice.
json parse(const std::string& text) {
  if (text.size() > kLongest) {
    throw_malformed({kName, text}, kLongest, fmt::format("at most {} bytes of JSON", kLongest));
  }
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kDeepest) {
      throw ClusterError("LS-CLUSTER-VALUE", fmt::format("TF_CONFIG is nested more than {} levels deep", kDeepest),
                         "write TF_CONFIG with the keys cluster and task");
    }
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw ClusterError("LS-CLUSTER-VALUE", fmt::format("TF_CONFIG has the key {} twice", in_quotes(parsed.dump())),
                         "give each key of TF_CONFIG once");
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    // The parser counts from 1, and includes the byte that is wrong.
    throw_malformed({kName, text}, error.byte > 0 ? error.byte - 1 : 0, "JSON");
  } catch (const json::exception&) {
    throw_malformed({kName, text}, 0, "JSON without numbers that are too large");
  }
}

/// The member `key` of an object; null where there is none.
json member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? json() : *found;
}

std::string address_of(const std::string& path, const json& value) {
  if (!value.is_string()) wrong(path, value, "a text \"host:port\"");
  return to_string(parse_address({fmt::format("{} of TF_CONFIG", path), value.get<std::string>()}));
}

/// A job's addresses: a list of them, or an object from task to address, which may leave tasks out.
std::vector<std::string> addresses_of(const std::string& path, const json& tasks) {
  std::vector<std::string> addresses;
  if (tasks.is_array()) {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      addresses.push_back(address_of(fmt::format("{}[{}]", path, i), tasks[i]));
    }
    return addresses;
  }
  if (!tasks.is_object()) wrong(path, tasks, "a list of \"host:port\", or an object from task to \"host:port\"");
  for (const auto& [key, address] : tasks.items()) {
    const auto task = whole_number({fmt::format("a task in {} of TF_CONFIG", path), key}, 0, kMostTasks - 1);
    if (static_cast<int64_t>(addresses.size()) <= task) addresses.resize(static_cast<std::size_t>(task) + 1);
    std::string& place = addresses[static_cast<std::size_t>(task)];
    if (!place.empty()) wrong(path, tasks, fmt::format("task {} once", task));
    place = address_of(fmt::format("{}.{}", path, key), address);
  }
  return addresses;
}

/// False where there is none.
bool read_cluster(ClusterSpec& spec, const json& config) {
  // Kubeflow calls it sparseCluster where it tells a worker only its own address and those of the parameter servers.
  const char* key = config.contains("cluster") ? "cluster" : "sparseCluster";
  const json cluster = member(config, key);
  if (cluster.is_null()) return false;
  if (!cluster.is_object()) wrong(key, cluster, "an object from job to addresses");
  for (const auto& [job, tasks] : cluster.items()) {
    std::vector<std::string> addresses = addresses_of(fmt::format("{}.{}", key, in_quotes(job)), tasks);
    if (!addresses.empty()) spec.jobs[job] = std::move(addresses);
  }
  return true;
}

/// False where no task is given.
bool read_task(ClusterSpec& spec, const json& config) {
  const json task = member(config, "task");
  if (task.is_null()) return false;
  if (!task.is_object()) wrong("task", task, "an object with type and index");
  const json type = member(task, "type");
  const json index = member(task, "index");
  if (type.is_null() && index.is_null()) return false;
  if (!type.is_string()) wrong("task.type", type, "the name of a job");
  spec.job = type.get<std::string>();
  // TensorFlow takes a text for it, too.
  const bool is_text = index.is_string();
  if (!is_text && !index.is_number_unsigned()) wrong("task.index", index, "a whole number from 0");
  spec.task =
      whole_number({"task.index of TF_CONFIG", is_text ? index.get<std::string>() : index.dump()}, 0, kMostTasks - 1);
  return true;
}

/// How many earlier workers have the same host.
int64_t local_worker_of(const ClusterSpec& spec) {
  if (spec.job == "ps" || spec.job == "evaluator" || spec.address().empty()) return 0;
  std::vector<std::string> all;
  for (const char* job : {"chief", "worker"}) {
    const auto found = spec.jobs.find(job);
    if (found != spec.jobs.end()) all.insert(all.end(), found->second.begin(), found->second.end());
  }
  const auto host_of = [](const std::string& address) { return parse_address({kName, address}).host; };
  const std::string own = host_of(spec.address());
  int64_t before = 0;
  for (int64_t i = 0; i < spec.worker_index(); ++i) {
    const std::string& other = all[static_cast<std::size_t>(i)];
    if (!other.empty() && host_of(other) == own) ++before;
  }
  return before;
}

}  // namespace

std::optional<ClusterSpec> tf_config(const Environment& environment) {
  const std::optional<std::string> text = environment.get(kName);
  if (!text) return std::nullopt;
  const json config = parse(*text);
  if (!config.is_object()) {
    throw ClusterError("LS-CLUSTER-VALUE",
                       fmt::format("TF_CONFIG is {}, which is no JSON object", in_quotes(config.dump())),
                       R"(write TF_CONFIG as {"cluster": {"worker": ["host:port"]}, "task": {"type": "worker", )"
                       R"("index": 0}}, or unset it)");
  }
  ClusterSpec spec;
  const bool has_cluster = read_cluster(spec, config);
  const bool has_task = read_task(spec, config);
  if (spec.jobs.empty() && spec.job != "evaluator") {
    if (has_cluster && has_task) {
      throw ClusterError("LS-CLUSTER-SPEC",
                         fmt::format("the cluster's description by TF_CONFIG contradicts itself: this process is task "
                                     "{} of {}, and the cluster has no task of this job",
                                     spec.task, in_quotes(spec.job)),
                         "list the addresses of all tasks in cluster, or unset TF_CONFIG");
    }
    if (spec.task == 0) return std::nullopt;
    throw ClusterError("LS-CLUSTER-INCOMPLETE",
                       fmt::format("TF_CONFIG has the task {} {}, and no cluster", in_quotes(spec.job), spec.task),
                       R"(add the addresses of all tasks: "cluster": {"worker": ["host:port", "host:port"]})");
  }
  if (!has_task) {
    throw ClusterError("LS-CLUSTER-INCOMPLETE", "TF_CONFIG has a cluster, and no task",
                       R"(add the task of this process: "task": {"type": "worker", "index": 0})");
  }
  spec.source = kName;
  spec.validate();
  spec.job_id = job_id_of(environment, {});
  spec.local_worker = local_worker_of(spec);
  spec.origins = {
      .num_workers = kName, .worker_index = kName, .chief_host = kName, .chief_port = kName, .local_worker = ""};
  return spec;
}

}  // namespace lockstep::internal::cluster
