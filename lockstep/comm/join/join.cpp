#include "lockstep/comm/join/join.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/cluster/address.h"
#include "lockstep/comm/join/interfaces.h"
#include "lockstep/comm/join/plug_ins.h"
#include "lockstep/comm/network/network_world.h"
#include "lockstep/comm/progress.h"
#include "lockstep/comm/shared_memory/shared_memory_world.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/log.h"
#include "lockstep/version.h"

namespace lockstep {

namespace {

using internal::Address;
using internal::OwnAddress;
using internal::Progress;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kEngines[] = {"auto", "shared-memory", "tls", "tcp", "ucx", "mpi"};

void check(const JoinOptions& options) {
  constexpr milliseconds kLongest = std::chrono::hours(365 * 24);
  if (std::find(std::begin(kEngines), std::end(kEngines), options.engine) == std::end(kEngines)) {
    throw UsageError("LS-OPTION", fmt::format("the engine '{}' does not exist", options.engine),
                     "choose auto, shared-memory, tls, tcp, ucx or mpi");
  }
  const WorkerTimeouts& times = options.timeouts;
  for (const auto& [name, time] :
       {std::pair(".join", times.join), std::pair(".lost", times.lost), std::pair(".stalled", times.stalled),
        std::pair(".patience", times.patience), std::pair(".work", times.work)}) {
    if (time >= milliseconds(1) && time <= kLongest) continue;
    throw UsageError("LS-OPTION", fmt::format("{} of WorkerTimeouts is {} ms", name, time.count()),
                     "give one millisecond to 365 days");
  }
}

milliseconds left_of(const Progress& progress) {
  return std::max(std::chrono::ceil<milliseconds>(progress.end() - Progress::Clock::now()), milliseconds(1));
}

/// Where this worker can be reached. In a cluster that is being started a name may become known later.
OwnAddress find_own_address(const ClusterSpec& cluster, Progress& progress) {
  while (true) {
    try {
      return internal::choose_interface(cluster, std::min<milliseconds>(left_of(progress), seconds(10)));
    } catch (const ClusterError& error) {
      if (error.code() != "LS-CLUSTER-LOOK-UP" || progress.is_over()) throw;
      const std::string text = error.what();
      progress.tell(
          [&] { return fmt::format("worker {} waits: {}", cluster.worker_index(), text.substr(0, text.find('\n'))); });
      std::this_thread::sleep_for(std::min(left_of(progress), milliseconds(500)));
    }
  }
}

/// What must be equal on all workers.
std::string must_match(const JoinOptions& options) {
  return fmt::format("Lockstep {}\n{}\nfingerprint {}\nengine {}\n.lost {} ms", LOCKSTEP_VERSION,
                     internal::platform_description(), internal::platform_fingerprint(), options.engine,
                     options.timeouts.lost.count());
}

/// Joins where all workers are on this host. Those who have `name` in common meet.
std::shared_ptr<World> join_this_host(const ClusterSpec& cluster, const JoinOptions& options, const std::string& name,
                                      const Progress& progress) {
  WorkerTimeouts timeouts = options.timeouts;
  timeouts.join = left_of(progress);
  return internal::join_shared_memory({.name = fmt::format("user {}\n{}", geteuid(), name),
                                       .num_workers = cluster.num_workers(),
                                       .worker_index = cluster.worker_index(),
                                       .secret = cluster.secret.reveal(),
                                       .must_match = must_match(options)},
                                      timeouts);
}

/// The workers' addresses, by worker; those that are not known are empty.
std::vector<std::string> expected_addresses(const ClusterSpec& cluster) {
  std::vector<std::string> all;
  for (const char* job : {"chief", "worker"}) {
    const auto found = cluster.jobs.find(job);
    if (found != cluster.jobs.end()) all.insert(all.end(), found->second.begin(), found->second.end());
  }
  return all;
}

internal::NetworkJob network_job(const ClusterSpec& cluster, const JoinOptions& options, const OwnAddress& own,
                                 const Progress& progress) {
  const Address chief = internal::parse_address({"the chief's address", cluster.chief_address()});
  internal::NetworkJob job{
      .num_workers = cluster.num_workers(),
      .worker_index = cluster.worker_index(),
      .chief =
          internal::look_up(internal::in_own_zone(chief.host, cluster.interface_name, internal::network_interfaces()),
                            std::min<milliseconds>(left_of(progress), seconds(10))),
      .chief_port = chief.port,
      .chief_name = internal::is_ip_number(chief.host) ? "" : chief.host,
      .own_address = own.address,
      .id = cluster.job_id,
      .secret = cluster.secret.reveal(),
      .must_match = must_match(options),
      .expected = expected_addresses(cluster),
      .plaintext = options.engine == "tcp" || (options.engine == "auto" && cluster.trusted_network),
  };
  const bool is_encrypted = !job.plaintext && !internal::is_plug_in(options.engine);
  job.must_match += is_encrypted ? "\ndata is encrypted" : "\ndata is not encrypted";
  if (job.worker_index == 0 && std::find(job.chief.begin(), job.chief.end(), own.address) == job.chief.end()) {
    throw ClusterError("LS-CLUSTER-INTERFACE",
                       fmt::format("worker 0 would listen at {}, and the others look for it at {}", own.address,
                                   cluster.chief_address()),
                       "give LOCKSTEP_CHIEF_ADDRESS an address of this host, and of the interface in "
                       "LOCKSTEP_INTERFACE if that is set");
  }
  if (!cluster.address().empty()) {
    job.own_port = internal::parse_address({"the worker's address", cluster.address()}).port;
  }
  return job;
}

/// The messenger of a plug-in, before the others are met, so that what is missing here is told at once. Null where the
/// connections of the network move the bytes.
std::shared_ptr<internal::Messenger> messenger_of(const ClusterSpec& cluster, const JoinOptions& options,
                                                  const OwnAddress& own) {
  const internal::MessengerSetup setup{.num_workers = cluster.num_workers(),
                                       .worker_index = cluster.worker_index(),
                                       .network_interface = own.interface_name};
  if (internal::is_plug_in(options.engine)) {
    if (!internal::is_private(own.address) && !cluster.trusted_network) {
      throw ClusterError("LS-CLUSTER-PUBLIC",
                         fmt::format("worker {} would use the engine {} at {}, an address that the whole Internet may "
                                     "reach, and its bytes are neither encrypted nor authenticated",
                                     cluster.worker_index(), options.engine, own.address),
                         "choose the engine tls, or a private network by LOCKSTEP_INTERFACE; where nobody else can "
                         "read or write on this one, set LOCKSTEP_TRUSTED_NETWORK=1");
    }
    return internal::load_messenger(options.engine, setup);
  }
  if (options.engine != "auto" || !cluster.trusted_network || !internal::has_rdma_device()) return nullptr;
  try {
    return internal::load_messenger("ucx", setup);
  } catch (const ClusterError& error) {
    internal::log(LogLevel::kInfo, fmt::format("worker {}: {}", cluster.worker_index(), error.what()));
    return nullptr;
  }
}

bool is_one_host(const internal::Members& members) {
  return std::all_of(members.all.begin(), members.all.end(),
                     [&](const internal::Member& one) { return one.host_id == members.all.front().host_id; });
}

/// Joins where workers may be on several hosts.
std::shared_ptr<World> join_network(const ClusterSpec& cluster, const JoinOptions& options, const OwnAddress& own,
                                    const Progress& progress) {
  if (cluster.secret.is_empty() && !internal::is_loopback(own.address)) {
    throw ClusterError("LS-CLUSTER-SECRET",
                       fmt::format("worker {} would listen at {} without a secret, where anybody may come",
                                   cluster.worker_index(), own.address),
                       "set LOCKSTEP_SECRET_FILE or LOCKSTEP_SECRET to the same secret on all workers; "
                       "`openssl rand -hex 32` makes one");
  }
  const internal::NetworkJob job = network_job(cluster, options, own, progress);
  std::shared_ptr<internal::Messenger> messenger = messenger_of(cluster, options, own);
  auto rendezvous = std::make_unique<internal::NetworkRendezvous>(job);
  const internal::Members members = rendezvous->meet(left_of(progress));
  if (options.engine == "auto" && is_one_host(members)) {
    rendezvous.reset();
    return join_this_host(cluster, options, "session " + members.session, progress);
  }
  const bool is_required = internal::is_plug_in(options.engine);
  if (!is_required && !(options.engine == "auto" && cluster.trusted_network)) {
    return internal::connect_network(std::move(rendezvous), options.timeouts);
  }
  return internal::connect_network(std::move(rendezvous), options.timeouts, std::move(messenger), is_required);
}

}  // namespace

std::shared_ptr<World> join(const ClusterSpec& cluster, const JoinOptions& options) {
  check(options);
  cluster.validate();
  const int64_t worker = cluster.worker_index();  // throws for a parameter server, which is none
  for (const std::string& sentence : cluster.disagreements) {
    internal::log(LogLevel::kWarning, fmt::format("worker {}: {}", worker, sentence));
  }
  if (cluster.num_workers() == 1) return internal::one_worker();
  Progress progress(options.timeouts.join);
  const std::string chief = cluster.chief_address();
  const OwnAddress own = find_own_address(cluster, progress);
  const bool is_network = options.engine != "auto" && options.engine != "shared-memory";
  if (chief.empty() && is_network) {
    throw ClusterError("LS-CLUSTER-INCOMPLETE",
                       fmt::format("worker {} does not know the chief's address, where workers meet by the engine {}",
                                   cluster.worker_index(), options.engine),
                       "set LOCKSTEP_CHIEF_ADDRESS to worker 0's host:port, on each worker");
  }
  if (options.engine == "shared-memory" && !chief.empty() && !own.chief_is_here) {
    throw ClusterError("LS-CLUSTER-SEVERAL-HOSTS",
                       fmt::format("worker {} is not on the host of the chief, {}", cluster.worker_index(), chief),
                       "choose the engine auto, tls or tcp, or start all workers on one host");
  }
  if (cluster.worker_index() == 0 && !chief.empty() && internal::is_loopback(own.address)) {
    const std::string host = internal::parse_address({"the chief's address", chief}).host;
    if (host != "localhost" && !internal::is_loopback(host)) {
      internal::log(
          LogLevel::kWarning,
          fmt::format("the chief's name {} is {} on this host: workers of other hosts cannot come", host, own.address));
    }
  }
  // Nobody on another host can come where the chief listens at a loopback address, or where there is no secret.
  const bool must_be_here =
      chief.empty() || internal::is_loopback(own.address) || (own.chief_is_here && cluster.secret.is_empty());
  if (options.engine == "shared-memory" || (options.engine == "auto" && must_be_here)) {
    return join_this_host(cluster, options, fmt::format("{}\n{}", cluster.job_id, chief), progress);
  }
  return join_network(cluster, options, own, progress);
}

}  // namespace lockstep
