#include "tools/cluster.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/cluster/address.h"
#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/comm/join/interfaces.h"
#include "lockstep/comm/join/join.h"
#include "lockstep/comm/join/missing_workers.h"
#include "lockstep/comm/join/this_host.h"
#include "lockstep/core/error.h"
#include "tools/console.h"
#include "tools/exit_status.h"

namespace lockstep::tools {

namespace {

using internal::OwnAddress;

/// What is probably a mistake, and no source disagrees about.
std::vector<std::string> findings_about(const ClusterSpec& spec, const OwnAddress& own) {
  std::vector<std::string> findings;
  if (spec.num_workers() < 2 || spec.job == "ps") return findings;
  const std::string chief = spec.chief_address();
  const std::string host = internal::parse_address({"the chief's address", chief}).host;
  if (spec.is_chief() && !own.chief_is_here) {
    findings.push_back(fmt::format("this process is the chief, and {} is no address of this host", chief));
  }
  if (internal::is_loopback(own.address) && !internal::is_loopback(host) && host != "localhost") {
    findings.push_back(
        fmt::format("{} is {} on this host, which workers on other hosts cannot reach", host, own.address));
  }
  if (!spec.is_chief() && !own.chief_is_here && spec.secret.is_empty()) {
    findings.push_back(fmt::format(
        "the chief, {}, is on another host, and without a secret in LOCKSTEP_SECRET_FILE or LOCKSTEP_SECRET this "
        "process cannot join it",
        chief));
  }
  return findings;
}

/// The port in the address of this process; empty where the description has none.
std::string port_of(const ClusterSpec& spec) {
  const std::string address = spec.address();
  return address.empty() ? "" : std::to_string(internal::parse_address({"the address", address}).port);
}

/// A worker's number; empty for a parameter server, which is none.
std::string index_of(const ClusterSpec& spec) { return spec.job == "ps" ? "" : std::to_string(spec.worker_index()); }

/// "3: a:2222, unknown, c:2222".
std::string list_of(const std::vector<std::string>& addresses) {
  constexpr std::size_t kShown = 8;
  std::string list = fmt::format("{}:", addresses.size());
  for (std::size_t i = 0; i < addresses.size() && i < kShown; ++i) {
    list += fmt::format("{} {}", i == 0 ? "" : ",", addresses[i].empty() ? "unknown" : addresses[i]);
  }
  return addresses.size() > kShown ? list + ", ..." : list;
}

using State = internal::SeenWorker::State;

/// A worker as it was seen: reached, or what is known of it.
struct CheckedWorker {
  State state = State::kUnknown;
  std::string host = {};  // of one that was reached
  int64_t process = 0;    // of one that was reached
  std::string seen = {};  // of one that is missing
};

struct CheckResult {
  std::string connected_by = {};            // what World::describe() says
  double microseconds = 0;                  // that an agreement of all workers takes
  std::vector<CheckedWorker> workers = {};  // by worker
  std::exception_ptr error = {};            // why the workers could not all be reached; null where they were
};

const char* name_of(State state) {
  switch (state) {
    case State::kHere: return "reached";
    case State::kMissing: return "missing";
    case State::kUnknown: break;
  }
  return "unknown";
}

/// What this process knows of the workers after an error: that it is here itself, and what a meeting at worker 0 that
/// failed has shown.
void mark_by(const Error& error, const ClusterSpec& spec, std::vector<CheckedWorker>& workers) {
  if (error.code() == "LS-CLUSTER-DIFFERS" || error.code() == "LS-CLUSTER-UNREACHABLE") {
    const std::string text = error.what();
    workers.front() = {.state = State::kMissing, .seen = text.substr(0, text.find('\n'))};
  }
  if (spec.job == "ps") return;  // which is no worker
  CheckedWorker& self = workers[static_cast<std::size_t>(spec.worker_index())];
  self.state = State::kHere;
  self.seen.clear();
}

/// Meets all workers of the job, which do the same, and agrees with them a few times.
CheckResult reach_all(ClusterSpec spec, const ClusterCommandOptions& options) {
  spec.disagreements.clear();  // they have been shown
  const std::chrono::seconds within(options.check_seconds);
  CheckResult result;
  result.workers.resize(static_cast<std::size_t>(spec.num_workers()));
  try {
    const auto world = join(spec, {.engine = options.engine, .timeouts = {.join = within, .patience = within}});
    result.connected_by = world->describe();
    const std::vector<std::string> records = world->agree(fmt::format("{} {}", getpid(), internal::host_name()));
    for (std::size_t w = 0; w < records.size(); ++w) {
      CheckedWorker& one = result.workers[w];
      one.state = State::kHere;
      std::istringstream(records[w]) >> one.process >> one.host;
    }
    constexpr int kCalls = 100;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) world->agree("again");
    result.microseconds =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kCalls;
  } catch (const internal::WorkersMissing& error) {
    result.error = std::current_exception();
    for (std::size_t w = 0; w < error.seen().size(); ++w) {
      result.workers[w] = {.state = error.seen()[w].state, .seen = error.seen()[w].what};
    }
  } catch (const Error& error) {
    result.error = std::current_exception();
    mark_by(error, spec, result.workers);
  }
  return result;
}

nlohmann::ordered_json json_of(const CheckResult& result) {
  nlohmann::ordered_json json;
  json["reached_all"] = !result.error;
  if (result.error) {
    json["error"] = message_of(result.error);
  } else {
    json["connected_by"] = result.connected_by;
    json["agreement_us"] = result.microseconds;
  }
  json["workers"] = nlohmann::ordered_json::array();
  for (const CheckedWorker& one : result.workers) {
    nlohmann::ordered_json worker = {{"state", name_of(one.state)}};
    if (one.process != 0) worker.update({{"host", one.host}, {"process", one.process}});
    if (one.state == State::kMissing) worker["seen"] = one.seen;
    json["workers"].push_back(std::move(worker));
  }
  return json;
}

void print(const CheckResult& result) {
  if (!result.error) std::fputs(fmt::format("connected by {}\n", result.connected_by).c_str(), stdout);
  for (std::size_t w = 0; w < result.workers.size(); ++w) {
    const CheckedWorker& one = result.workers[w];
    std::string more;
    if (one.process != 0) more = fmt::format(", process {} on host {}", one.process, one.host);
    if (!one.seen.empty()) more = ", " + one.seen;
    std::fputs(fmt::format("worker {}: {}{}\n", w, name_of(one.state), more).c_str(), stdout);
  }
  if (result.error) return;
  std::fputs(fmt::format("one call of agree() with all workers takes {:.0f} us\n", result.microseconds).c_str(),
             stdout);
}

nlohmann::ordered_json json_of(const ClusterSpec& spec, const OwnAddress& own,
                               const std::vector<std::string>& findings) {
  nlohmann::ordered_json json;
  json["source"] = spec.source;
  json["job"] = spec.job;
  json["task"] = spec.task;
  json["num_workers"] = spec.num_workers();
  if (spec.job == "ps") {
    json["worker_index"] = nullptr;
  } else {
    json["worker_index"] = spec.worker_index();
  }
  json["is_chief"] = spec.is_chief();
  json["chief_address"] = spec.chief_address();
  json["local_worker"] = spec.local_worker;
  json["job_id"] = spec.job_id;
  json["has_secret"] = !spec.secret.is_empty();
  json["interface"] = own.interface_name;
  json["address"] = own.address;
  json["port"] = port_of(spec);
  json["jobs"] = spec.jobs;
  json["disagreements"] = spec.disagreements;
  json["findings"] = findings;
  return json;
}

void print(const ClusterSpec& spec, const OwnAddress& own, const std::vector<std::string>& findings) {
  const auto or_none = [](const std::string& text, const char* none) { return text.empty() ? none : text; };
  std::vector<std::pair<std::string, std::string>> rows = {
      {"source", spec.source},
      {"this process", fmt::format("task {} of '{}'{}", spec.task, spec.job, spec.is_chief() ? ", the chief" : "")},
      {"worker", spec.job == "ps" ? "none" : fmt::format("{} of {}", index_of(spec), spec.num_workers())},
      {"chief", or_none(spec.chief_address(), "-")},
      {"worker of this host", std::to_string(spec.local_worker)},
      {"job's id", or_none(spec.job_id, "-")},
      {"secret", spec.secret.is_empty() ? "none" : "given"},
      {"interface", own.address.empty() ? "unknown" : fmt::format("{} ({})", own.interface_name, own.address)},
      {"port", or_none(port_of(spec), "-")},
  };
  for (const auto& [job, addresses] : spec.jobs)
    rows.emplace_back(fmt::format("tasks of '{}'", job), list_of(addresses));
  print_table(rows);
  for (const std::string& text : spec.disagreements) std::fputs(fmt::format("disagrees: {}\n", text).c_str(), stdout);
  for (const std::string& text : findings) std::fputs(fmt::format("finding: {}\n", text).c_str(), stdout);
}

}  // namespace

int show_cluster(const ClusterCommandOptions& options) {
  const ClusterSpec spec = resolve_cluster();
  OwnAddress own;
  std::exception_ptr no_interface;  // what the sources say is shown all the same
  try {
    own = internal::choose_interface(spec);
  } catch (const ClusterError&) {
    no_interface = std::current_exception();
  }
  const std::vector<std::string> findings = no_interface ? std::vector<std::string>() : findings_about(spec, own);
  if (!options.json) print(spec, own, findings);
  flush_output();  // the others may take their time
  std::optional<CheckResult> checked;
  if (options.check && !no_interface) checked = reach_all(spec, options);
  if (options.json) {
    nlohmann::ordered_json json = json_of(spec, own, findings);
    if (checked) json["check"] = json_of(*checked);
    std::fputs((json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n").c_str(), stdout);
  } else if (checked) {
    print(*checked);
  }
  flush_output();
  if (no_interface) std::rethrow_exception(no_interface);
  if (checked && checked->error) std::rethrow_exception(checked->error);
  const bool is_clean = spec.disagreements.empty() && findings.empty();
  return is_clean ? kClean : exit_status(kFindings, ExitCode::kConfiguration);
}

}  // namespace lockstep::tools
