#include "lockstep/comm/network/network_world.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/failure/exits.h"
#include "lockstep/comm/failure/run_failure.h"
#include "lockstep/comm/network/control.h"
#include "lockstep/comm/network/data_plane.h"
#include "lockstep/comm/network/join/connect_messengers.h"
#include "lockstep/comm/network/join/host_rendezvous.h"
#include "lockstep/comm/network/join/refusal.h"
#include "lockstep/comm/network/run_state.h"
#include "lockstep/comm/network/wire/message_channel.h"
#include "lockstep/core/error.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process/forks.h"
#include "lockstep/core/unwinding.h"

namespace lockstep::internal::inline comm {

namespace {

class NetworkWorld final : public World {
 public:
  NetworkWorld(std::unique_ptr<NetworkRendezvous>&& rendezvous, NetworkTeam&& team, const WorkerTimeouts& timeouts)
      : rendezvous_(std::move(rendezvous)),
        members_(std::move(team.members.all)),
        worker_(rendezvous_->job().worker_index),
        description_(rendezvous_->job().plaintext
                         ? "tcp: every connection is authenticated by the job's secret, and its bytes are not encrypted"
                         : "tls: every connection is authenticated by the job's secret, and encrypted (TLS 1.3)"),
        key_(rendezvous_->job().secret + team.members.session),
        state_(std::make_unique<NetworkRunState>()),
        control_(std::make_unique<Control>(rendezvous_->context(),
                                           Control::Team{.members = members_,
                                                         .connections = std::move(team.control),
                                                         .datagrams = std::move(team.datagrams),
                                                         .keys = rendezvous_->keys(),
                                                         .datagram_key = key_,
                                                         .most_direct = rendezvous_->job().most_direct},
                                           worker_, timeouts.lost, *state_)),
        data_plane_(members_, worker_, std::move(team.data), timeouts, rendezvous_->job().most_direct, *state_,
                    *control_) {
    at_exit(this, [this] { control_->leave_at_exit(); });
  }

  ~NetworkWorld() override {
    if (process_.is_in_child()) {
      // The thread did not come along, and the parent still uses the connections.
      if (messenger_) static_cast<void>(new std::shared_ptr<Messenger>(messenger_));
      static_cast<void>(control_.release());
      static_cast<void>(state_.release());
      static_cast<void>(rendezvous_.release());
      return;
    }
    forget_at_exit(this);
    if (unwinding_.is_on()) try {
        control_->notice(fmt::format("{} was ended by an exception, which it reports itself",
                                     members_[static_cast<std::size_t>(worker_)].name()),
                         worker_, PeerError::Noticed::kException);
      } catch (const std::exception&) {  // short of memory: the others then see that this worker has left
      }
    if (messenger_) messenger_->end(data_plane_.has_failed());
    control_.reset();  // the others hear that this worker has left before its connections for data break
  }
  NetworkWorld(const NetworkWorld&) = delete;
  NetworkWorld& operator=(const NetworkWorld&) = delete;

  int64_t num_workers() const override { return static_cast<int64_t>(members_.size()); }
  int64_t worker_index() const override { return worker_; }

  std::vector<std::string> agree(const std::string& mine) override { return data_plane_.agree(mine); }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    require_one_for_each_worker(to.size(), from.size(), num_workers());
    data_plane_.exchange(to, from);
  }

  HostMemory* host_memory() override { return host_memory_.get(); }
  Windows* windows() override { return &data_plane_; }

  std::string describe() const override { return messenger_ ? messenger_->describe() : description_; }

  /// Gives the bytes of calls to the messenger, on all workers or on none. Why not; empty where it does.
  std::string move_to(std::shared_ptr<Messenger> messenger) {
    const auto on_all = [&](FunctionRef<std::string()> part, std::vector<std::string>& results) {
      return all_do(part, results);
    };
    const std::string problem = connect_messengers(messenger.get(), num_workers(), on_all);
    if (!problem.empty()) return problem;
    for (int64_t w = 0; w < num_workers(); ++w) {
      if (w != worker_) data_plane_.carry(w, std::make_unique<MessageChannel>(messenger, w, num_workers()));
    }
    messenger_ = std::move(messenger);
    return {};
  }

  /// Gives the bytes between workers of a host to memory that both map, and gets memory that all of the host map, where
  /// some share a host and not all do. Where two cannot share memory, their connection stays.
  void share_memory() {
    if (!is_mixed(members_)) return;
    SharedOnHost shared = share_on_host(members_, worker_, key_, [&](const std::string& mine) { return agree(mine); });
    for (int64_t w = 0; w < num_workers(); ++w) {
      auto& channel = shared.channels[static_cast<std::size_t>(w)];
      if (w != worker_ && channel) data_plane_.carry(w, std::move(channel));
    }
    host_memory_ = std::move(shared.host_memory);
    description_ += shared.description;
    for (const std::string& warning : shared.warnings) log(LogLevel::kWarning, warning);
  }

  void require_running() const override {
    if (process_.is_in_child()) process_.throw_forked("worker", worker_, worker_);
    if (const std::optional<RunEnd> end = state_->end()) throw error_of(decode_failure(end->reason));
  }

  void set_phase(const WorkerPhase& phase) noexcept override { state_->set_phase(encode(phase)); }

  void abort(const std::string& reason) noexcept override {
    if (!process_.is_in_child()) data_plane_.abort(reason);
  }

 private:
  /// Every worker does its part, and gets what all parts gave, by worker. Why a worker could not; empty where all
  /// could.
  std::string all_do(FunctionRef<std::string()> part, std::vector<std::string>& results) {
    const std::string done = "done: ";
    std::string mine;
    try {
      mine = done + part();
    } catch (const std::exception& error) {
      mine = error.what();
    }
    const std::vector<std::string> all = agree(mine);
    for (std::size_t w = 0; w < all.size(); ++w) {
      if (!all[w].starts_with(done)) return fmt::format("{}: {}", members_[w].name(), all[w]);
      results[w] = all[w].substr(done.size());
    }
    return {};
  }

  const ProcessMark process_;
  const Unwinding unwinding_;
  std::unique_ptr<NetworkRendezvous> rendezvous_;  // first: what follows uses its context
  const std::vector<Member> members_;
  std::shared_ptr<Messenger> messenger_;     // null where the connections move the bytes
  std::unique_ptr<HostMemory> host_memory_;  // where some workers share a host, and not all of them
  const int64_t worker_;
  std::string description_;
  const std::string key_;  // of this run: its workers know it, and nobody else
  std::unique_ptr<NetworkRunState> state_;
  std::unique_ptr<Control> control_;
  DataPlane data_plane_;
};

}  // namespace

std::shared_ptr<World> connect_network(std::unique_ptr<NetworkRendezvous> rendezvous, const WorkerTimeouts& timeouts) {
  NetworkTeam team = rendezvous->connect();
  const auto world = std::make_shared<NetworkWorld>(std::move(rendezvous), std::move(team), timeouts);
  world->share_memory();
  return world;
}

std::shared_ptr<World> connect_network(std::unique_ptr<NetworkRendezvous> rendezvous, const WorkerTimeouts& timeouts,
                                       std::shared_ptr<Messenger> messenger, bool is_required) {
  NetworkTeam team = rendezvous->connect();
  const auto world = std::make_shared<NetworkWorld>(std::move(rendezvous), std::move(team), timeouts);
  const std::string problem = world->move_to(std::move(messenger));
  if (problem.empty()) return world;
  if (!is_required) {
    world->share_memory();
    return world;
  }
  throw ClusterError("LS-CLUSTER-ENGINE", fmt::format("the engine cannot be used on {}", problem),
                     "repair what it says there, or choose the engine tls");
}

}  // namespace lockstep::internal::comm
