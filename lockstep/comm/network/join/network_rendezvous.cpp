#include "lockstep/comm/network/join/network_rendezvous.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "lockstep/cluster/address.h"
#include "lockstep/comm/join/this_host.h"
#include "lockstep/comm/network/join/refusal.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = Frame::Kind;

namespace {

/// The job, if this process can have connections with so many workers.
NetworkJob checked(NetworkJob job) {
  if (job.num_workers > NetworkRendezvous::kMostWorkers) {
    throw ClusterError("LS-CLUSTER-SOCKET",
                       fmt::format("{} workers cannot be connected with each other", job.num_workers),
                       fmt::format("start at most {} workers", NetworkRendezvous::kMostWorkers));
  }
  constexpr int64_t kOthers = 64;  // files that the program and joining need
  const int64_t needed = 2 * job.num_workers + kOthers;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < static_cast<rlim_t>(needed)) {
    throw ClusterError("LS-CLUSTER-SOCKET",
                       fmt::format("worker {} may have {} files open, and needs {} for {} workers", job.worker_index,
                                   files.rlim_cur, needed, job.num_workers),
                       fmt::format("raise the limit: ulimit -n {}", needed));
  }
  return job;
}

std::string zone_of_job(const NetworkJob& job) {
  std::string zone = zone_of(job.own_address);
  for (const std::string& number : job.chief) {
    if (zone.empty()) zone = zone_of(number);
  }
  return zone;
}

}  // namespace

NetworkRendezvous::NetworkRendezvous(NetworkJob job)
    : job_(checked(std::move(job))),
      zone_(zone_of_job(job_)),
      tls_(job_.secret, job_.id),
      listener_(context_, job_.own_address, job_.worker_index == 0 ? job_.chief_port : job_.own_port, tls_,
                fmt::format("worker {}", job_.worker_index)),
      datagrams_(std::make_unique<Datagrams>(context_, job_.own_address)),
      changed_(context_),
      joined_(static_cast<std::size_t>(job_.num_workers)),
      seen_(static_cast<std::size_t>(job_.num_workers)),
      is_probed_(static_cast<std::size_t>(job_.num_workers)),
      chief_(job_.chief),
      next_look_up_(Event::Clock::now() + job_.look_up_every),
      control_(static_cast<std::size_t>(job_.num_workers)),
      data_(static_cast<std::size_t>(job_.num_workers)) {
  mine_ = {.member = {.worker = job_.worker_index,
                      .process = getpid(),
                      .host = host_name(),
                      .host_id = job_.host_id.empty() ? host_id() : job_.host_id,
                      .address = without_zone(job_.own_address),
                      .port = listener_.port(),
                      .datagram_port = datagrams_->port()},
           .num_workers = job_.num_workers,
           .must_match = job_.must_match,
           .expected = job_.expected};
  listener_.start([this](std::shared_ptr<Connection> connection, Frame frame) { welcome(connection, frame); });
}

NetworkRendezvous::~NetworkRendezvous() = default;

/// Runs the context until the coroutine has ended, and throws what it threw.
template <class Coroutine>
void NetworkRendezvous::run_until_done(Coroutine coroutine) {
  bool is_done = false;
  std::exception_ptr thrown;
  asio::co_spawn(context_, std::move(coroutine), [&](std::exception_ptr exception) {
    thrown = std::move(exception);
    is_done = true;
    context_.stop();
  });
  context_.restart();
  while (!is_done) context_.run();
  if (thrown) std::rethrow_exception(thrown);
}

Members NetworkRendezvous::meet(milliseconds join) {
  Progress progress(join);
  run_until_done(job_.worker_index == 0 ? gather(progress) : go_to_chief(progress));
  return members_;
}

NetworkTeam NetworkRendezvous::connect() {
  run_until_done(job_.worker_index == 0 ? wait_until_ready() : attach_to_all());
  return {.members = members_,
          .control = std::move(control_),
          .data = std::move(data_),
          .datagrams = std::move(datagrams_)};
}

void NetworkRendezvous::welcome(const std::shared_ptr<Connection>& connection, const Frame& frame) {
  if (frame.kind == Kind::kJoin && job_.worker_index == 0) {
    asio::co_spawn(context_, serve_joiner(connection, frame), rethrow);
  } else if (frame.kind == Kind::kAttach) {
    asio::co_spawn(context_, serve_attachment(connection, frame), rethrow);
  } else if (frame.kind == Kind::kMembers && job_.worker_index != 0) {
    asio::co_spawn(context_, take_members(connection, frame), rethrow);
  } else if (frame.kind == Kind::kProbe) {
    connection->send({.kind = Kind::kProbed, .text = mine_.member.name()});
    connection->close_after(seconds(1));
  } else {
    listener_.refuse(*connection);
  }
}

bool NetworkRendezvous::is_connected_with_all() const {
  for (std::size_t w = 0; w < control_.size(); ++w) {
    if (static_cast<int64_t>(w) != job_.worker_index && (!control_[w] || !data_[w])) return false;
  }
  return true;
}

void NetworkRendezvous::add_data(int64_t worker, const std::shared_ptr<Connection>& connection) {
  auto [socket, stream] = connection->release();
  if (job_.plaintext) stream.drop_tls();
  data_[static_cast<std::size_t>(worker)] = std::make_unique<DataStream>(
      job_.worker_index, worker, std::make_unique<SocketChannel>(std::move(socket), std::move(stream)));
}

asio::awaitable<void> NetworkRendezvous::serve_attachment(std::shared_ptr<Connection> connection, Frame frame) {
  const std::optional<Attachment> attachment = decode_attachment(frame.text);
  // A worker that has heard before this one that all are here comes first.
  const Event::Clock::time_point end = Event::Clock::now() + kLongestConnect;
  while (attachment && members_.all.empty() && Event::Clock::now() < end) co_await changed_.wait(end);
  const bool is_data = attachment && attachment->purpose == Attachment::Purpose::kData;
  // Worker 0 has its connections for control since the others joined.
  const bool is_ours = attachment && attachment->session == members_.session && !members_.session.empty() &&
                       attachment->to == job_.worker_index && attachment->worker > job_.worker_index &&
                       attachment->worker < job_.num_workers && (is_data || job_.worker_index > 0);
  if (!is_ours || may_go_) {
    listener_.refuse(*connection);
    co_return;
  }
  connection->send({.kind = Kind::kAttached, .number = static_cast<uint64_t>(job_.worker_index)});
  try {
    co_await connection->flush();
  } catch (const ConnectionError&) {
    co_return;  // the other side tries again
  }
  if (may_go_) co_return;
  // One that comes again has not heard the first answer: the newer connection counts.
  if (is_data) {
    add_data(attachment->worker, connection);
  } else {
    control_[static_cast<std::size_t>(attachment->worker)] = connection;
  }
  changed_.notify();
}

}  // namespace lockstep::internal::comm
