// How the workers of a run end it together: for one reason, and after the same call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/network/wire/frame.h"

namespace lockstep::internal::inline comm {

/// Why a run has ended, and how many of its calls count on every worker.
struct RunEnd {
  uint64_t calls = 0;
  std::string reason = {};

  bool operator==(const RunEnd&) const = default;
};

/// One worker's part in ending the run. It decides and does nothing itself, so that it can be tested without a network.
///
/// The protocol. A worker has *taken* a call when it has all that the others sent it in that call; it *returns* from
/// the call when it knows that all have taken it. The *arbiter* is the first worker that is not gone. A worker that
/// finds a reason to end the run tells the arbiter. The arbiter *freezes* all: nobody takes a further call or returns
/// from one, and each answers how far it is. The calls that all survivors have taken count: they have what these calls
/// brought, and no worker can have returned from a later one. The arbiter tells this number and the reason to all, and
/// each tells them on, so that they stay the same though the arbiter is gone. Where the arbiter is gone before that,
/// the next one begins again. A decision carries its *round*: the arbiter that has made it or taken it over. A worker
/// that has told a later arbiter how far it is ignores a decision of an earlier round, which may come late.
///
/// A worker that is dead has no say. For one that cannot be reached or has left, the last numbers that it sent are
/// used: it may still be running with those results. Where a network is cut in two, each part decides for itself, and
/// no part counts a call that a worker of the other part is not known to have taken. A worker that only seemed
/// unreachable may have returned from one call more than the others count.
class EndOfRun {
 public:
  /// How a worker came to be gone.
  enum class Gone : uint8_t { kDead, kUnreachable, kLeft };

  /// What the worker does for the decision.
  struct Effects {
    /// Takes no more calls, and returns from none, until the end comes. Gives how far it is. It may be called again.
    std::function<Calls()> freeze;
    /// Sends a frame to a worker that is not dead.
    std::function<void(int64_t worker, Frame frame)> send;
    /// The run has ended. Called once.
    std::function<void(const RunEnd& end)> end;
  };

  EndOfRun(int64_t workers, int64_t self, Effects effects);

  /// This worker has found that the run must end. The first reason stays.
  void notice(const std::string& reason);
  /// A worker is gone, and was at least so far. It does not end the run by itself.
  void set_gone(int64_t worker, Gone how, const Calls& calls);
  /// A frame of kEnding, kFreeze, kFrozen, kEnd or kHeartbeat came from a worker: it can be reached.
  void receive(int64_t from, const Frame& frame);

  /// What this worker wants from that one to end the run is said once more: what was said before may have been lost.
  void ask_again(int64_t worker);

  bool has_ended() const { return end_.has_value(); }
  /// What tells others that the run has ended, and how; only once it has.
  Frame end_frame() const;
  /// The first reason that this worker has heard of; empty where it knows of none.
  const std::string& reason() const { return reason_; }

 private:
  struct Other {
    std::optional<Gone> gone = {};
    Calls calls = {};                     // it is at least so far
    std::optional<Calls> frozen_at = {};  // its answer to this worker as the arbiter
  };

  int64_t arbiter() const;
  bool is_gone(int64_t worker) const;
  void hear(const std::string& reason);
  void pursue();
  void freeze_others();
  void decide_if_all_answered();
  void adopt(const RunEnd& end, int64_t round);
  Frame end_frame_of_round(int64_t round) const;

  const int64_t self_;
  const Effects effects_;
  std::vector<Other> others_;  // by worker
  std::string reason_;
  int64_t told_ = -1;  // the arbiter that knows the reason from this worker
  bool arbitrates_ = false;
  int64_t answered_ = 0;  // the last arbiter to which this worker has said how far it is
  std::optional<RunEnd> end_;
  int64_t round_ = 0;  // of end_
};

}  // namespace lockstep::internal::comm
