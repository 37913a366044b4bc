// How workers of several hosts find each other at worker 0, and get connected.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/join/look_up.h"
#include "lockstep/comm/join/missing_workers.h"
#include "lockstep/comm/network/dissemination.h"
#include "lockstep/comm/network/event.h"
#include "lockstep/comm/network/join/listener.h"
#include "lockstep/comm/network/join/members.h"
#include "lockstep/comm/network/join/refusal.h"
#include "lockstep/comm/network/wire/asio.h"
#include "lockstep/comm/network/wire/connection.h"
#include "lockstep/comm/network/wire/data_stream.h"
#include "lockstep/comm/network/wire/datagrams.h"
#include "lockstep/comm/progress.h"

namespace lockstep::internal::inline comm {

/// One worker of a job whose workers may run on several hosts.
struct NetworkJob {
  int64_t num_workers = 0;
  int64_t worker_index = 0;
  /// Where worker 0 listens: its numbers, the best first, and the port.
  std::vector<std::string> chief = {};
  uint16_t chief_port = 0;
  /// The name from which the numbers come: while a worker waits for worker 0 it looks there again, because a process
  /// that is started again may get another number. Empty: the numbers stay.
  std::string chief_name = {};
  /// At which number of this host this worker listens; port 0 is any that is free. Worker 0 listens at the chief's
  /// port.
  std::string own_address = {};
  uint16_t own_port = 0;
  /// Keeps jobs apart that use the same secret.
  std::string id = {};
  /// What workers prove to each other that they know; may be empty where all addresses are loopback addresses.
  std::string secret = {};
  /// What must be equal on all workers: one fact on each line. A refusal shows the first line that differs.
  std::string must_match = {};
  /// Where the workers are expected: by worker, "host:port"; empty where that is not known. Those of two workers must
  /// not differ, but for worker 0's own.
  std::vector<std::string> expected = {};
  /// Whether data goes on without TLS once both sides have proved that they know the secret.
  bool plaintext = false;
  Resolver resolver = ask_system;
  std::chrono::milliseconds look_up_every = std::chrono::seconds(10);
  /// For tests: in which time all who have come connect to each other. Then each other worker tells worker 0 whom it
  /// lacks, and waits a little longer for what worker 0 tells all.
  std::chrono::milliseconds longest_connect_all = kLongestConnectAll;
  /// For tests: with more workers than this, records, heartbeats and the list of members go along a Dissemination.
  int64_t most_direct = kMostDirect;
  /// For tests: the host on which the worker says that it is, in place of host_id().
  std::string host_id = {};
};

/// All that connects a worker with the others.
struct NetworkTeam {
  Members members;
  std::vector<std::shared_ptr<Connection>> control;  // by worker; null for this one
  std::vector<std::unique_ptr<DataStream>> data;     // as control
  std::unique_ptr<Datagrams> datagrams;              // not started
};

/// Brings a worker together with all others. One thread uses it; it waits there.
class NetworkRendezvous {
 public:
  /// A worker has two connections with each other one, and all addresses are one frame.
  static constexpr int64_t kMostWorkers = 2048;

  /// Listens. A ClusterError (LS-CLUSTER-SOCKET) where the system refuses, where it allows fewer open files than the
  /// connections need, or for more than kMostWorkers.
  explicit NetworkRendezvous(NetworkJob job);
  ~NetworkRendezvous();
  NetworkRendezvous(const NetworkRendezvous&) = delete;
  NetworkRendezvous& operator=(const NetworkRendezvous&) = delete;

  const NetworkJob& job() const { return job_; }
  /// On which all of this worker's connections run. Nobody else runs it before connect() has returned.
  asio::io_context& context() { return context_; }
  /// With which all of its connections are made.
  const TlsContext& keys() const { return tls_; }
  /// At which this worker listens.
  uint16_t port() const { return listener_.port(); }

  /// Waits until all workers have come to worker 0.
  ///
  /// A ClusterError (LS-CLUSTER-JOIN) on every worker that has come where some are missing after `join`; it names them.
  /// A worker with another secret, number of workers or build than worker 0 gets LS-CLUSTER-DIFFERS at once, and one
  /// whose index another process has LS-CLUSTER-TAKEN, while the others go on waiting. Where worker 0 is in a run
  /// already, which an earlier start of the job may have left, a worker waits for the next one. Every ten seconds a
  /// line in the log says who is missing and what was seen of it. LS-CLUSTER-UNREACHABLE on all where the list of all
  /// workers does not come to one of them.
  Members meet(std::chrono::milliseconds join);

  /// Connects every worker with every other one, after meet(). A ClusterError (LS-CLUSTER-UNREACHABLE) on all of them
  /// where two cannot be connected; it names both.
  NetworkTeam connect();

 private:
  /// A worker that has come; worker 0 keeps them.
  struct Joined {
    Member member;
    std::shared_ptr<Connection> connection;
    bool is_ready = false;
  };

  template <class Coroutine>
  void run_until_done(Coroutine coroutine);
  void welcome(const std::shared_ptr<Connection>& connection, const Frame& frame);

  // Worker 0.
  asio::awaitable<void> gather(Progress& progress);
  asio::awaitable<void> serve_joiner(std::shared_ptr<Connection> connection, Frame frame);
  asio::awaitable<void> probe(int64_t worker);
  asio::awaitable<std::string> what_is_at(std::string address);
  asio::awaitable<void> wait_until_ready();
  /// The refusal of a process that may not join, as it is sent; nothing where it may.
  std::optional<Frame> refusal_of(const Joiner& joiner, const Connection& connection) const;
  std::string who_is_here() const;
  std::vector<SeenWorker> seen_workers() const;
  int64_t num_joined() const;
  void refuse_all(uint64_t kind, const std::string& text);

  // The others.
  asio::awaitable<void> go_to_chief(Progress& progress);
  void look_for_chief();
  asio::awaitable<std::shared_ptr<Connection>> reach_chief(Progress& progress);
  asio::awaitable<bool> join_chief(std::shared_ptr<Connection> connection, Progress& progress);
  asio::awaitable<void> listen_to_chief();
  asio::awaitable<void> take_members(std::shared_ptr<Connection> connection, Frame frame);
  asio::awaitable<void> wait_for_members(int64_t from);
  asio::awaitable<void> pass_members_on();
  asio::awaitable<void> attach_to_all();
  std::string lacking_text() const;
  std::string chief_name() const;
  std::string unreachable_text(int64_t worker, const std::string& problem) const;
  asio::awaitable<void> attach(int64_t worker, Attachment::Purpose purpose, Event::Clock::time_point end);
  asio::awaitable<std::string> attach_in_time(int64_t worker, Attachment::Purpose purpose,
                                              Event::Clock::time_point end);

  // All.
  /// Whether the list of members goes along a tree.
  bool relays() const { return job_.num_workers > job_.most_direct; }
  asio::awaitable<void> serve_attachment(std::shared_ptr<Connection> connection, Frame frame);
  void add_data(int64_t worker, const std::shared_ptr<Connection>& connection);
  bool is_connected_with_all() const;

  asio::io_context context_{1};  // first: it is destroyed after all that uses it
  const NetworkJob job_;
  const std::string zone_;  // by which this host reaches addresses that need one
  const TlsContext tls_;
  Listener listener_;
  std::unique_ptr<Datagrams> datagrams_;
  Joiner mine_;
  Event changed_;  // something of what follows has changed
  Members members_;
  std::string announced_;                      // the session whose members another worker sends; empty: none yet
  std::string not_passed_on_;                  // why the members could not be passed on; empty where they could
  std::vector<std::optional<Joined>> joined_;  // by worker
  std::vector<std::string> seen_;              // by worker: what was seen of one that is missing
  std::vector<bool> is_probed_;                // by worker: now
  int look_ups_ = 0;                           // of the names of missing workers, now
  std::vector<std::string> chief_;             // where worker 0 is now
  std::optional<LookUp> chief_look_up_;
  Event::Clock::time_point next_look_up_;
  std::vector<std::shared_ptr<Connection>> control_;
  std::vector<std::unique_ptr<DataStream>> data_;
  std::string failure_;  // why the workers cannot be connected
  bool may_go_ = false;
};

}  // namespace lockstep::internal::comm
