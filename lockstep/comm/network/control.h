// The control plane of a run: which workers are alive, and how the run ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/failure/run_failure.h"
#include "lockstep/comm/failure/seen_phases.h"
#include "lockstep/comm/network/dissemination.h"
#include "lockstep/comm/network/end_of_run.h"
#include "lockstep/comm/network/join/members.h"
#include "lockstep/comm/network/run_state.h"
#include "lockstep/comm/network/seen_calls.h"
#include "lockstep/comm/network/wire/asio.h"
#include "lockstep/comm/network/wire/connection.h"
#include "lockstep/comm/network/wire/datagrams.h"
#include "lockstep/core/process/oom_kills.h"

namespace lockstep::internal::inline comm {

/// A thread that exchanges heartbeats with other workers, by TCP and as datagrams, answers at the listener, and ends
/// the run together with the others (EndOfRun) where one of them is gone, frozen or cut off, or where this worker asks
/// for it.
///
/// Each worker hears the heartbeats of its *neighbours*: up to `most_direct` workers of all others, and of more the
/// partners of a Dissemination, whose number grows with log W. Others it asks for heartbeats while it waits for them in
/// a call, and all others while the run must end. A worker that hears nothing from a neighbour for `lost` tells all.
/// They ask that neighbour, and give it a fifth of `lost` to answer.
///
/// A worker is gone when its connection breaks, however its process ended, and nobody listens at its address any more.
/// Where it can still be reached, or gives no answer, the run ends because of the connection, and datagrams take the
/// place of that connection. A worker is frozen or cut off when nothing has come from it for `lost`, counted in this
/// worker's own ticks, so that a machine or a process that stood still for a while blames nobody.
class Control {
 public:
  /// What it works with, but for the data.
  struct Team {
    std::vector<Member> members;                           // by worker
    std::vector<std::shared_ptr<Connection>> connections;  // by worker; this one's is null
    std::unique_ptr<Datagrams> datagrams;
    const TlsContext& keys;
    std::string datagram_key;  // the same for all workers, and for no other run
    int64_t most_direct = kMostDirect;
  };

  /// `context` has no thread yet; it, the keys and `state` outlive the control.
  Control(asio::io_context& context, Team team, int64_t worker, std::chrono::milliseconds lost, NetworkRunState& state);
  /// Tells the others that this worker takes part no longer, and waits for no answer.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Any thread may call these. They do not wait.

  /// Ends the run, for this reason unless there was one before. Where it is a failure of worker `failed`, what is known
  /// of that worker is added.
  void notice(const std::string& reason, int64_t failed = -1, PeerError::Noticed how = PeerError::Noticed::kUnknown);
  /// Ends the run because this worker has no memory. Needs none itself, and takes up to a heartbeat longer.
  void notice_no_memory() noexcept { has_no_memory_ = true; }
  /// The connection for data with this worker broke. Where the worker itself is not gone, that ends the run.
  void notice_broken(int64_t worker, const std::string& how);
  /// The program ends while the run goes on. Waits a moment until the others have been told.
  void leave_at_exit();
  /// These workers are asked for heartbeats until this is called again: this worker waits for them in a call.
  void ask(std::vector<int64_t> workers);
  /// What the others do, by their heartbeats.
  const SeenPhases& phases() const { return phases_; }
  const SeenCalls& calls() const { return calls_; }

 private:
  struct Peer {
    std::shared_ptr<Connection> connection;
    bool is_neighbour = false;
    bool is_awaited = false;     // in a call of this worker
    bool is_suspect = false;     // another worker hears nothing from it
    bool is_watched = false;     // it is expected to let hear from it
    bool is_known = false;       // what it does, since it is watched
    bool has_been_heard = true;  // since the last tick
    int silent_ticks = 0;
    Calls calls = {};        // by its last heartbeat
    bool is_over = false;    // it is gone, or takes part no longer
    bool is_probed = false;  // its connection broke, and whether it is gone is not known yet
  };
  /// What came of the question whether a worker is still there.
  enum class Answer : uint8_t { kHere, kGone, kNone };

  asio::awaitable<void> listen(int64_t worker);
  asio::awaitable<Answer> probe(int64_t worker);
  asio::awaitable<void> beat();
  void tell(int64_t worker, const Frame& frame);
  void receive(int64_t worker, const Frame& frame);
  Frame heartbeat() const;
  void watch();
  void check_heartbeats();
  void suspect(int64_t worker, const Calls& calls);
  int most_silent_ticks() const { return static_cast<int>(lost_ / tick_); }
  void lose(int64_t worker, EndOfRun::Gone how, const Calls& calls, const std::string& reason);
  std::string failure_of(int64_t worker, PeerError::Noticed how, std::string text) const;
  void leave(bool at_exit);
  void run();

  asio::io_context& context_;
  const std::vector<Member> members_;
  const int64_t worker_;
  const std::chrono::milliseconds lost_;
  const std::string failure_text_;
  const std::chrono::milliseconds tick_;
  NetworkRunState& state_;
  const OomWatch oom_watch_;
  SeenPhases phases_;
  SeenCalls calls_;
  const std::unique_ptr<Datagrams> datagrams_;
  const TlsContext& keys_;
  std::vector<Peer> peers_;  // by worker; used by the thread only, as are those below
  const bool are_all_neighbours_;
  std::vector<int64_t> told_;  // in this tick
  EndOfRun end_of_run_;
  bool has_left_ = false;
  std::atomic<bool> has_no_memory_ = false;  // set by any thread
  std::thread thread_;
};

}  // namespace lockstep::internal::comm
