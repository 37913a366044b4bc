// The control plane of a run: which workers are alive, and how the run ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/network/asio.h"
#include "lockstep/comm/network/connection.h"
#include "lockstep/comm/network/datagrams.h"
#include "lockstep/comm/network/end_of_run.h"
#include "lockstep/comm/network/members.h"
#include "lockstep/comm/network/run_state.h"

namespace lockstep::internal {

/// A thread that exchanges heartbeats with every other worker, by TCP and as datagrams, answers at the listener, and
/// ends the run together with the others (EndOfRun) where one of them is gone, frozen or cut off, or where this worker
/// asks for it.
///
/// A worker is gone when it closes its connection: at once, however its process ended. It is frozen or cut off when
/// nothing has come from it for `lost`, counted in this worker's own ticks, so that a machine or a process that stood
/// still for a while blames nobody.
class Control {
 public:
  /// What it works with, but for the data.
  struct Team {
    std::vector<Member> members;                           // by worker
    std::vector<std::shared_ptr<Connection>> connections;  // by worker; this one's is null
    std::unique_ptr<Datagrams> datagrams;
    std::string datagram_key;  // the same for all workers, and for no other run
  };

  /// `context` has no thread yet; it and `state` outlive the control.
  Control(asio::io_context& context, Team team, int64_t worker, std::chrono::milliseconds lost, RunState& state);
  /// Tells the others that this worker takes part no longer, and waits for no answer.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Any thread may call these. They do not wait.

  /// Ends the run, for this reason unless there was one before.
  void notice(const std::string& reason);
  /// The connection for data with this worker broke. Where the worker itself is not gone, that ends the run.
  void notice_broken(int64_t worker, const std::string& how);
  /// The program ends while the run goes on. Waits a moment until the others have been told.
  void leave_at_exit();

 private:
  struct Peer {
    std::shared_ptr<Connection> connection;
    bool has_been_heard = true;  // since the last tick
    int silent_ticks = 0;
    Calls calls = {};  // by its last heartbeat
    bool is_over = false;
  };

  asio::awaitable<void> listen(int64_t worker);
  asio::awaitable<void> beat();
  void receive(int64_t worker, const Frame& frame);
  void check_heartbeats();
  void lose(int64_t worker, EndOfRun::Gone how, const Calls& calls, const std::string& reason);
  void leave(bool at_exit);
  void run();

  asio::io_context& context_;
  const std::vector<Member> members_;
  const int64_t worker_;
  const std::chrono::milliseconds lost_;
  const std::string failure_text_;
  const std::chrono::milliseconds tick_;
  RunState& state_;
  const std::unique_ptr<Datagrams> datagrams_;
  std::vector<Peer> peers_;  // by worker; used by the thread only, as are those below
  EndOfRun end_of_run_;
  bool has_left_ = false;
  std::thread thread_;
};

}  // namespace lockstep::internal
