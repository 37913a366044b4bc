#include "lockstep/cluster/resolve_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "lockstep/cluster/address.h"
#include "lockstep/cluster/disagreements.h"
#include "lockstep/cluster/job_counts.h"
#include "lockstep/cluster/named_text.h"
#include "lockstep/cluster/sources.h"
#include "lockstep/cluster/sources/other_launchers.h"
#include "lockstep/core/error.h"

namespace lockstep {

namespace {

using internal::kMostTasks;
using internal::NamedText;

/// Who may describe the cluster, and how to ask.
struct Source {
  std::string name;
  std::function<std::optional<ClusterSpec>(const Environment&)> read;
};

/// ClusterOptions::num_workers and worker_index, as a source like the others.
std::optional<ClusterSpec> from_options(const ClusterOptions& options) {
  if (!options.num_workers && !options.worker_index) return std::nullopt;
  const int64_t count = options.num_workers.value_or(0);
  const int64_t index = options.worker_index.value_or(0);
  if (!options.num_workers || (!options.worker_index && count > 1)) {
    const char* missing = options.num_workers ? ".worker_index" : ".num_workers";
    throw ClusterError("LS-CLUSTER-INCOMPLETE",
                       fmt::format("of .num_workers and .worker_index, {} is not given", missing),
                       fmt::format("give {} as well", missing));
  }
  if (count < 1 || count > kMostTasks || index < 0 || index >= count) {
    throw ClusterError("LS-CLUSTER-SPEC", fmt::format(".num_workers is {} and .worker_index is {}", count, index),
                       fmt::format("give 1 to {} workers, and an index below their number", kMostTasks));
  }
  ClusterSpec spec = internal::workers(count, index);
  spec.origins.num_workers = fmt::format(".num_workers = {}", count);
  spec.origins.worker_index = fmt::format(".worker_index = {}", index);
  return spec;
}

std::vector<Source> sources_of(const ClusterOptions& options, const Environment& environment) {
  std::vector<Source> sources = {{"options", [&](const Environment&) { return from_options(options); }}};
  for (const auto& resolver : options.resolvers) {
    if (!resolver) {
      throw UsageError("LS-EMPTY-HANDLE", "ClusterOptions::resolvers has an empty pointer", "give it an object");
    }
    sources.push_back({resolver->name(), [&](const Environment& e) { return resolver->resolve(e); }});
  }
  const std::vector<Source> own = {{"LOCKSTEP_*", internal::lockstep_variables},
                                   {"TF_CONFIG", internal::tf_config},
                                   {"torchrun", internal::torchrun},
                                   {"PET_*", internal::pet},
                                   {"Open MPI", internal::open_mpi},
                                   {"PMI", internal::pmi},
                                   {"Slurm", internal::slurm},
                                   {internal::name_of_other_launcher(environment), internal::other_launcher},
                                   {"PMIx", internal::pmix},
                                   {"Kubernetes", internal::kubernetes}};
  sources.insert(sources.end(), own.begin(), own.end());
  return sources;
}

/// What all sources say: the winner first, then the others, and what those that cannot be read say about it.
struct Answers {
  std::vector<ClusterSpec> specs;
  std::vector<std::string> unreadable;
};

Answers ask(const std::vector<Source>& sources, const Environment& environment) {
  Answers answers;
  for (const Source& source : sources) {
    try {
      std::optional<ClusterSpec> spec = source.read(environment);
      if (!spec) continue;
      spec->source = source.name;
      spec->disagreements.clear();
      spec->validate();
      answers.specs.push_back(std::move(*spec));
    } catch (const ClusterError& error) {
      if (answers.specs.empty()) throw;
      const std::string text = error.what();
      answers.unreadable.push_back(fmt::format("{} cannot be read: {}", source.name, text.substr(0, text.find('\n'))));
    }
  }
  return answers;
}

/// Whether both describe this process as the same one of as many workers.
bool same_place(const ClusterSpec& a, const ClusterSpec& b) {
  return a.job != "ps" && b.job != "ps" && a.num_workers() == b.num_workers() && a.worker_index() == b.worker_index();
}

/// What another source says differently goes to the winner's disagreements. One worker beside several is an error.
void compare(ClusterSpec& winner, const ClusterSpec& other, const Environment& environment) {
  if (internal::counts_hosts(winner, other, environment)) return;
  const std::vector<std::string> found = internal::disagreements_of(winner, other);
  if (!found.empty() && winner.num_workers() == 1 && other.num_workers() > 1 && winner.source != "options") {
    throw ClusterError(
        "LS-CLUSTER-ONE-WORKER", found.front() + ": this worker would train alone",
        fmt::format("unset the variables of {}, or start the program by one launcher only", winner.source));
  }
  winner.disagreements.insert(winner.disagreements.end(), found.begin(), found.end());
}

/// LOCKSTEP_NUM_WORKERS without an index is no source by itself, and still says how many workers there are.
void compare_count(ClusterSpec& winner, const Environment& environment) {
  if (environment.has("LOCKSTEP_WORKER_INDEX") || winner.job == "ps" || winner.job == "evaluator") return;
  const std::optional<int64_t> count = environment.integer("LOCKSTEP_NUM_WORKERS", 1, kMostTasks);
  if (!count || *count == 1) return;  // one worker is a source, and compared as such
  ClusterSpec said = internal::workers(*count, winner.worker_index());
  said.source = "LOCKSTEP_*";
  said.origins.num_workers = internal::shown(environment, "LOCKSTEP_NUM_WORKERS");
  compare(winner, said, environment);
}

/// Whether the program or its user has said that this process is alone.
bool is_meant_to_be_alone(const ClusterOptions& options, const Environment& environment) {
  return options.num_workers == 1 || environment.get("LOCKSTEP_NUM_WORKERS") == "1";
}

/// The value of an option, otherwise of its variable; with a name for messages. Nothing where neither is given.
std::optional<NamedText> given(const std::optional<std::string>& option, const char* option_name,
                               const Environment& environment, const char* variable) {
  if (option) return NamedText{option_name, *option};
  if (const std::optional<std::string> value = environment.get(variable)) return NamedText{variable, *value};
  return std::nullopt;
}

/// Makes an address unknown. A source that derived its ports may have given the same one to another task.
void forget(ClusterSpec& spec, const std::string& address) {
  for (auto& [job, addresses] : spec.jobs) std::replace(addresses.begin(), addresses.end(), address, std::string());
}

/// The chief's address that was given for whichever source wins.
void apply_chief_address(ClusterSpec& winner, const std::vector<ClusterSpec>& others, const ClusterOptions& options,
                         const Environment& environment) {
  if (winner.job == "evaluator") return;
  const auto chief = given(options.chief_address, ".chief_address", environment, "LOCKSTEP_CHIEF_ADDRESS");
  if (chief) {
    ClusterSpec replaced = winner;
    replaced.source = chief->name;
    const std::string address = to_string(internal::parse_address(*chief));
    if (winner.origins.chief_port.empty()) forget(replaced, address);
    internal::set_chief_address(replaced, address);
    // Only hosts are compared: another port is what one gives an address for.
    replaced.origins.chief_host = chief->name;
    replaced.origins.chief_port.clear();
    if (winner.job != "ps") {
      for (std::string& sentence : internal::disagreements_of(replaced, winner)) {
        winner.disagreements.push_back(std::move(sentence));
      }
    }
    winner.jobs = std::move(replaced.jobs);
    winner.origins.chief_host = fmt::format("{}={}", chief->name, chief->text);
    winner.origins.chief_port.clear();
    return;
  }
  // Why no address is known, and why another source's is not used.
  std::string unused =
      winner.chief_address().empty() && !winner.origins.chief_host.empty() ? "; " + winner.origins.chief_host : "";
  for (const ClusterSpec& other : others) {
    if (!winner.chief_address().empty() || other.chief_address().empty()) continue;
    if (!same_place(winner, other)) {
      for (const std::string& sentence : internal::disagreements_of(winner, other)) unused += "; " + sentence;
      continue;
    }
    internal::set_chief_address(winner, other.chief_address());
    winner.origins.chief_host = other.origins.chief_host;
    winner.origins.chief_port = other.origins.chief_port;
  }
  if (winner.job != "ps" && winner.num_workers() > 1 && winner.chief_address().empty()) {
    throw ClusterError(
        "LS-CLUSTER-INCOMPLETE",
        fmt::format("{} says {} workers ({}, {}), and no source that agrees says where the chief is{}", winner.source,
                    winner.num_workers(), winner.origins.num_workers, winner.origins.worker_index, unused),
        "set LOCKSTEP_CHIEF_ADDRESS to worker 0's host:port, on each worker");
  }
}

void apply_local_worker(ClusterSpec& winner, const ClusterOptions& options, const Environment& environment) {
  if (options.local_worker) {
    winner.local_worker = *options.local_worker;
  } else {
    internal::set_local_worker(winner, environment, "LOCKSTEP_LOCAL_WORKER");
  }
}

void apply_job_id(ClusterSpec& winner, const std::vector<ClusterSpec>& others, const ClusterOptions& options,
                  const Environment& environment) {
  if (const auto id = given(options.job_id, ".job_id", environment, "LOCKSTEP_JOB_ID")) winner.job_id = id->text;
  for (const ClusterSpec& other : others) {
    if (winner.job_id.empty() && same_place(winner, other)) winner.job_id = other.job_id;
  }
}

internal::JobCounts job_counts_of(const ClusterOptions& options, const Environment& environment) {
  internal::JobCounts counts;
  const char* const servers = "LOCKSTEP_PS";
  const char* const evaluator = "LOCKSTEP_EVALUATOR";
  counts.servers = options.servers.value_or(environment.integer(servers, 0, kMostTasks).value_or(0));
  counts.servers_by =
      options.servers ? fmt::format(".servers = {}", *options.servers) : internal::shown(environment, servers);
  if (counts.servers < 0 || counts.servers > kMostTasks) {
    throw ClusterError("LS-CLUSTER-SPEC", counts.servers_by, fmt::format("give 0 to {}", kMostTasks));
  }
  counts.has_evaluator = options.evaluator.value_or(environment.integer(evaluator, 0, 1).value_or(0) == 1);
  counts.evaluator_by = options.evaluator ? ".evaluator = true" : internal::shown(environment, evaluator);
  return counts;
}

Secret secret_of(const ClusterOptions& options, const Environment& environment) {
  if (options.secret) return *options.secret;
  const std::optional<std::string> text = environment.get("LOCKSTEP_SECRET");
  const std::optional<std::string> path = environment.get("LOCKSTEP_SECRET_FILE");
  if (text && path) {
    throw ClusterError("LS-CLUSTER-SECRET", "LOCKSTEP_SECRET and LOCKSTEP_SECRET_FILE are both set",
                       "unset one of them");
  }
  if (path) return internal::secret_from_file(*path);
  return text ? Secret(*text) : Secret();
}

std::string interface_of(const ClusterOptions& options, const Environment& environment) {
  constexpr std::size_t kLongest = 15;  // bytes of an interface's name in Linux
  const auto name = given(options.interface_name, ".interface_name", environment, "LOCKSTEP_INTERFACE");
  if (!name) return "";
  for (std::size_t at = 0; at < name->text.size(); ++at) {
    const char c = name->text[at];
    if (c < 0x21 || c > 0x7e || c == '/' || at >= kLongest) {
      internal::throw_malformed(*name, at, fmt::format("an interface's name of at most {} characters", kLongest));
    }
  }
  return name->text;
}

}  // namespace

ClusterSpec resolve_cluster(const ClusterOptions& options) {
  return resolve_cluster(options, Environment::of_process());
}

ClusterSpec resolve_cluster(const ClusterOptions& options, const Environment& environment) {
  Answers answers = ask(sources_of(options, environment), environment);
  if (answers.specs.empty()) {
    ClusterSpec alone = internal::workers(1, 0);
    alone.source = "alone";
    alone.disagreements = internal::signs_of_others(environment);
    answers.specs.push_back(std::move(alone));
  }
  ClusterSpec winner = std::move(answers.specs.front());
  const std::vector<ClusterSpec> others(std::make_move_iterator(answers.specs.begin() + 1),
                                        std::make_move_iterator(answers.specs.end()));
  apply_chief_address(winner, others, options, environment);
  for (const ClusterSpec& other : others) compare(winner, other, environment);
  compare_count(winner, environment);
  winner.disagreements.insert(winner.disagreements.end(), answers.unreadable.begin(), answers.unreadable.end());
  if (winner.job == "worker" && winner.num_workers() == 1 && winner.disagreements.empty() &&
      !is_meant_to_be_alone(options, environment)) {
    winner.disagreements = internal::signs_of_other_hosts(winner, environment);
  }
  apply_local_worker(winner, options, environment);
  apply_job_id(winner, others, options, environment);
  winner.secret = secret_of(options, environment);
  winner.interface_name = interface_of(options, environment);
  winner.trusted_network =
      options.trusted_network.value_or(environment.integer("LOCKSTEP_TRUSTED_NETWORK", 0, 1).value_or(0) == 1);
  winner.validate();
  internal::deal_jobs(winner, job_counts_of(options, environment));
  return winner;
}

}  // namespace lockstep
