#include "lockstep/comm/network/network_world.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <utility>
#include <vector>

#include "lockstep/comm/call_wait.h"
#include "lockstep/comm/exits.h"
#include "lockstep/comm/message.h"
#include "lockstep/comm/network/connect_messengers.h"
#include "lockstep/comm/network/control.h"
#include "lockstep/comm/network/host_rendezvous.h"
#include "lockstep/comm/network/message_channel.h"
#include "lockstep/comm/network/refusal.h"
#include "lockstep/comm/network/run_state.h"
#include "lockstep/comm/run_failure.h"
#include "lockstep/comm/window_table.h"
#include "lockstep/core/error.h"
#include "lockstep/core/forks.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/log.h"
#include "lockstep/core/unwinding.h"

namespace lockstep::internal {

namespace {

class NetworkWorld final : public World, private Windows {
 public:
  NetworkWorld(std::unique_ptr<NetworkRendezvous>&& rendezvous, NetworkTeam&& team, const WorkerTimeouts& timeouts)
      : rendezvous_(std::move(rendezvous)),
        members_(team.members.all),
        data_(std::move(team.data)),
        worker_(rendezvous_->job().worker_index),
        timeouts_(timeouts),
        spin_(longest_spin()),
        description_(rendezvous_->job().plaintext
                         ? "tcp: every connection is authenticated by the job's secret, and its bytes are not encrypted"
                         : "tls: every connection is authenticated by the job's secret, and encrypted (TLS 1.3)"),
        key_(rendezvous_->job().secret + team.members.session),
        state_(std::make_unique<RunState>()),
        control_(std::make_unique<Control>(rendezvous_->context(),
                                           Control::Team{.members = members_,
                                                         .connections = std::move(team.control),
                                                         .datagrams = std::move(team.datagrams),
                                                         .keys = rendezvous_->keys(),
                                                         .datagram_key = key_},
                                           worker_, timeouts.lost, *state_)) {
    for (const auto& stream : data_) {
      if (stream) stream->set_windows(&windows_);
    }
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
    if (messenger_) messenger_->end(has_failed_);
  }
  NetworkWorld(const NetworkWorld&) = delete;
  NetworkWorld& operator=(const NetworkWorld&) = delete;

  int64_t num_workers() const override { return static_cast<int64_t>(members_.size()); }
  int64_t worker_index() const override { return worker_; }

  std::vector<std::string> agree(const std::string& mine) override {
    require_record_size(mine.size());
    std::vector<std::string> all(members_.size());
    all[static_cast<std::size_t>(worker_)] = mine;
    call([&](DataStream& stream, uint64_t number) {
      stream.begin(MessageHead::Kind::kRecord, number, std::as_bytes(std::span(mine)),
                   all[static_cast<std::size_t>(stream.other())]);
    });
    return all;
  }

  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    require_one_for_each_worker(to.size(), from.size(), num_workers());
    call([&](DataStream& stream, uint64_t number) {
      const auto w = static_cast<std::size_t>(stream.other());
      stream.begin(MessageHead::Kind::kBytes, number, to[w], from[w]);
    });
  }

  HostMemory* host_memory() override { return host_memory_.get(); }
  Windows* windows() override { return this; }

  std::string describe() const override { return messenger_ ? messenger_->describe() : description_; }

  /// Gives the bytes of calls to the messenger, on all workers or on none. Why not; empty where it does.
  std::string move_to(std::shared_ptr<Messenger> messenger) {
    const auto on_all = [&](FunctionRef<std::string()> part, std::vector<std::string>& results) {
      return all_do(part, results);
    };
    const std::string problem = connect_messengers(messenger.get(), num_workers(), on_all);
    if (!problem.empty()) return problem;
    for (auto& stream : data_) {
      if (!stream) continue;
      carry(stream, std::make_unique<MessageChannel>(messenger, stream->other(), num_workers()));
    }
    messenger_ = std::move(messenger);
    return {};
  }

  /// Gives the bytes between workers of a host to memory that both map, and gets memory that all of the host map, where
  /// some share a host and not all do. Where two cannot share memory, their connection stays.
  void share_memory() {
    if (!is_mixed(members_)) return;
    SharedOnHost shared = share_on_host(members_, worker_, key_, [&](const std::string& mine) { return agree(mine); });
    for (auto& stream : data_) {
      if (!stream) continue;
      auto& channel = shared.channels[static_cast<std::size_t>(stream->other())];
      if (channel) carry(stream, std::move(channel));
    }
    host_memory_ = std::move(shared.host_memory);
    description_ += shared.description;
    for (const std::string& warning : shared.warnings) log(LogLevel::kWarning, warning);
  }

  void set_phase(const WorkerPhase& phase) noexcept override { state_->set_phase(encode(phase)); }

  void abort(const std::string& reason) noexcept override try {
    if (process_.is_in_child()) return;
    has_failed_ = true;
    state_->freeze();  // a call of this worker that begins now fails
    control_->notice(fmt::format("worker {} aborted the run: {}", worker_, reason), worker_,
                     PeerError::Noticed::kAborted);
  } catch (const std::exception&) {  // no memory for the text
    control_->notice({});
  }

 private:
  uint64_t unused() const override { return windows_.unused(); }
  void open(uint64_t window, std::vector<std::span<std::byte>> memory, std::shared_ptr<void> owner) override {
    require_one_for_each_worker(memory.size(), memory.size(), num_workers());
    windows_.open(window, std::move(memory), std::move(owner));
  }
  void close(uint64_t window) noexcept override { windows_.close(window); }
  void put(uint64_t window, int64_t worker, std::size_t offset, Bytes bytes) override {
    if (process_.is_in_child()) process_.throw_forked("worker", worker_, worker_);
    if (!is_in_call_) data_[static_cast<std::size_t>(worker)]->put(window, offset, std::move(bytes));
  }
  void progress() noexcept override try {
    if (process_.is_in_child() || is_in_call_) return;
    for (const auto& stream : data_) {
      if (stream && stream->problem().empty() && stream->broken().empty()) stream->advance();
    }
  } catch (const std::exception&) {
    abort("it had no memory for what the others sent");
  }
  uint64_t arrived(uint64_t window, int64_t worker) const override { return windows_.arrived(window, worker); }

  /// From now on the channel carries what the stream did.
  void carry(std::unique_ptr<DataStream>& stream, std::unique_ptr<Channel> channel) {
    stream = std::make_unique<DataStream>(worker_, stream->other(), std::move(channel));
    stream->set_windows(&windows_);
  }

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

  /// One call in which all workers take part; `begin` says to each stream what it moves.
  template <class Begin>
  void call(const Begin& begin) {
    if (process_.is_in_child()) process_.throw_forked("worker", worker_, worker_);
    throw_if_ended(calls_ + 1);
    ++calls_;
    is_in_call_ = true;
    try {
      for (const auto& stream : data_) {
        if (stream) begin(*stream, calls_);
      }
      if (wait_until([](const DataStream& one) { return one.has_received() && one.has_sent(); }) &&
          state_->take(calls_)) {
        for (const auto& stream : data_) {
          if (stream) stream->send_taken();
        }
        if (wait_until([](const DataStream& one) { return one.is_taken() && one.has_sent(); }) &&
            state_->finish(calls_)) {
          is_in_call_ = false;
          return;
        }
      }
    } catch (const std::bad_alloc&) {
      control_->notice(fmt::format("worker {} had no memory for what the others sent", worker_), worker_,
                       PeerError::Noticed::kFailed);
      wait_for_end();
      throw;
    }
    wait_for_end();
    throw_if_ended(calls_);
  }

  /// Moves bytes until `is_over` holds for all streams. False where the run ends before.
  template <class IsOver>
  bool wait_until(const IsOver& is_over) {
    CallWait wait(timeouts_);
    auto spin_end = CallWait::Clock::now() + spin_;
    while (true) {
      bool all_over = true;
      bool has_more = false;
      for (const auto& stream : data_) {
        if (!stream || is_over(*stream)) continue;
        const bool stopped_at_bound = stream->advance();
        if (!stream->problem().empty()) {
          control_->notice(stream->problem(), stream->other(), PeerError::Noticed::kMessage);
          return false;
        }
        if (is_over(*stream)) continue;
        if (!stream->broken().empty()) {
          control_->notice_broken(stream->other(), stream->broken());
          return false;
        }
        all_over = false;
        has_more |= stopped_at_bound;
      }
      if (all_over) return true;
      switch (wait.count()) {
        case CallWait::Verdict::kGoOn: break;
        case CallWait::Verdict::kWarn:
          log(LogLevel::kWarning, fmt::format("worker {} has waited {:.0f} s: {}", worker_, wait.seconds(),
                                              who_has_not_come(who_is_missing())));
          break;
        case CallWait::Verdict::kGiveUp: give_up(wait.seconds()); return false;
      }
      // Also where there is more to move, the end of the run is looked for.
      const bool may_sleep = !has_more && CallWait::Clock::now() >= spin_end;
      if (sleep(may_sleep ? wait.longest_sleep() : CallWait::Clock::duration::zero(), is_over)) return false;
      if (may_sleep) spin_end = CallWait::Clock::now() + spin_;
    }
  }

  /// Sleeps until bytes can be moved. True where the run has ended.
  template <class IsOver>
  bool sleep(CallWait::Clock::duration longest, const IsOver& is_over) {
    files_.assign(1, {.fd = state_->event(), .events = POLLIN, .revents = 0});
    std::chrono::nanoseconds time = std::min<std::chrono::nanoseconds>(longest, std::chrono::minutes(1));
    for (const auto& stream : data_) {
      if (time.count() == 0) break;
      if (stream && !is_over(*stream)) time = std::min(time, stream->watch(files_));
    }
    constexpr int64_t kSecond = 1'000'000'000;
    const timespec limit{.tv_sec = time.count() / kSecond, .tv_nsec = time.count() % kSecond};
    ppoll(files_.data(), files_.size(), &limit, nullptr);
    return files_.front().revents != 0;
  }

  void give_up(double seconds) {
    const std::vector<int64_t> missing = who_is_missing();
    control_->notice(fmt::format("after {:.1f} s {}", seconds, who_has_not_come(missing)),
                     missing.empty() ? -1 : missing.front(), PeerError::Noticed::kAbsent);
  }

  /// Who has not come to this call, or else whoever has come and not finished it.
  std::vector<int64_t> who_is_missing() const {
    std::vector<int64_t> missing;
    const auto add_where = [&](auto is_missing) {
      for (const auto& stream : data_) {
        if (stream && is_missing(*stream)) missing.push_back(stream->other());
      }
    };
    add_where([](const DataStream& one) { return !one.has_begun(); });
    if (missing.empty()) add_where([](const DataStream& one) { return !one.is_taken(); });
    return missing;
  }
  /// "worker 2 has not come to call 17", and what it does.
  std::string who_has_not_come(const std::vector<int64_t>& missing) const {
    const bool have_begun = std::all_of(missing.begin(), missing.end(),
                                        [&](int64_t w) { return data_[static_cast<std::size_t>(w)]->has_begun(); });
    return missing_text(missing, have_begun ? "finished" : "come to", calls_, control_->phases());
  }

  /// The workers decide in a time that depends on heartbeats alone. A bound stands here all the same.
  void wait_for_end() {
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
    const auto longest = std::min(timeouts_.lost, kLongest / (num_workers() + 2)) * (num_workers() + 2);
    pollfd file{.fd = state_->event(), .events = POLLIN, .revents = 0};
    const auto end = CallWait::Clock::now() + longest;
    while (!state_->end() && CallWait::Clock::now() < end) poll(&file, 1, 1000);
    if (state_->end()) return;
    state_->set_end(
        {.calls = state_->freeze().returned,
         .reason = encode(
             RunFailure{.text = fmt::format("worker {} could not learn from the others how the run ended", worker_)})});
  }

  /// Throws where the run has ended before `call`, or without this worker: where one connection broke between two
  /// workers that live, the others may count a call that this worker has not taken.
  void throw_if_ended(uint64_t call) {
    const std::optional<RunEnd> end = state_->end();
    const uint64_t taken = state_->calls().taken;
    if (!end || (end->calls >= call && taken >= call)) return;
    has_failed_ = true;
    const RunFailure failure = decode_failure(end->reason);
    throw error_of(failure, end->calls > taken
                                ? fmt::format("the others went on without worker {}: {}", worker_, failure.text)
                                : failure.text);
  }

  /// To be woken up takes longer than most answers of a worker that is in the call, too. Only where each worker of this
  /// host has a core.
  CallWait::Clock::duration longest_spin() const {
    const std::string& here = members_[static_cast<std::size_t>(worker_)].host_id;
    const auto workers =
        std::count_if(members_.begin(), members_.end(), [&](const Member& one) { return one.host_id == here; });
    return sysconf(_SC_NPROCESSORS_ONLN) >= workers ? std::chrono::microseconds(50) : std::chrono::microseconds(0);
  }

  const ProcessMark process_;
  const Unwinding unwinding_;
  std::unique_ptr<NetworkRendezvous> rendezvous_;  // first: what follows uses its context
  const std::vector<Member> members_;
  std::shared_ptr<Messenger> messenger_;     // null where the connections move the bytes
  std::unique_ptr<HostMemory> host_memory_;  // where some workers share a host, and not all of them
  WindowTable windows_;
  std::vector<std::unique_ptr<DataStream>> data_;  // by worker; null for this one
  const int64_t worker_;
  const WorkerTimeouts timeouts_;
  const CallWait::Clock::duration spin_;  // before it sleeps
  std::string description_;
  const std::string key_;  // of this run: its workers know it, and nobody else
  uint64_t calls_ = 0;
  bool is_in_call_ = false;  // or the last one has failed: streams still refer to memory of its caller
  std::atomic<bool> has_failed_ = false;
  std::vector<pollfd> files_;  // of sleep(), kept so that a call allocates nothing
  std::unique_ptr<RunState> state_;
  std::unique_ptr<Control> control_;
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

}  // namespace lockstep::internal
