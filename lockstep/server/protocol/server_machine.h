// A server of a parameter-server run as a state machine: pushes that are held, the log that is read in order, and pulls
// that wait for a position of it.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/server/protocol/messages.h"
#include "lockstep/server/protocol/rules.h"

namespace lockstep::internal::inline server {

/// A push that a server holds.
struct HeldPush {
  StepAttempt step = {};
  Payload push = {};
  auto operator<=>(const HeldPush&) const = default;
};

/// What a server's values are, for the machine that decides when they change. Its functions are called by the thread
/// that calls the machine, one at a time. The machine never opens what it hands over. Only commit(), round() and
/// change() may change values; they must not fail, so hold() refuses what could not be applied.
class ServerStore {
 public:
  virtual ~ServerStore() = default;

  /// Called once for each push before it is held: checks it, and sets apart the memory that applying it may take. Null,
  /// or the error for which the push is refused.
  virtual Payload hold(const HeldPush& push) = 0;
  /// What hold() has accepted will never be applied.
  virtual void drop(const HeldPush& push) = 0;
  /// A step counts. Where `entry.apply` is false, its push is dropped, and the step counts all the same.
  virtual void commit(const LogEntry& entry, const HeldPush& push) = 0;
  /// The squares of the sum of these parts, in the order of their steps, for the chief to add up.
  virtual Payload squares(const LogEntry& entry, std::span<const HeldPush> parts) = 0;
  /// A round counts, of these parts in the order of their steps; with `entry.apply` as commit().
  virtual void round(const LogEntry& entry, std::span<const HeldPush> parts) = 0;
  virtual void change(const LogEntry& entry) = 0;
  /// Keeps the state as it is now, and goes on; the runtime writes what was kept.
  virtual void freeze(const LogEntry& entry) = 0;
  virtual void release(const LogEntry& entry) = 0;
  /// The values that are asked for, of the state at `position`. It changes nothing.
  virtual Payload answer(const PullRequest& pull, Position position) = 0;
};

struct ServerOutput {
  std::vector<ToWorker> to_workers;
  std::vector<ChiefMessage> to_chief;
};

/// A value, as BasicWorkerMachine. Invariant: it keeps nothing of steps below its floor, so its memory is bounded by
/// what is under way.
template <class Rules>
class BasicServerMachine {
 public:
  /// At a restore, `position` and `floor` are those of the ChiefCut, and `decided` are its steps above the floor that
  /// count or are closed.
  BasicServerMachine(uint64_t epoch, int32_t server, Position position = 0, int64_t floor = 0,
                     std::set<int64_t> decided = {});

  /// Answers pulls and pushes; keeps entries of the log until they are read. What comes again is answered again.
  void receive(const ServerMessage& message, ServerStore& store, ServerOutput& out);
  bool has_entries() const { return !unread_.empty(); }
  /// Reads the next entry, and then answers the pulls that have waited for it. An InternalError where the log names a
  /// push that is not held, which the protocol excludes.
  void read_entry(ServerStore& store, ServerOutput& out);

  /// Tells the chief how far this server has read.
  void report(ServerOutput& out) const;
  /// The cut that the store kept is written, or could not be, as `saved` says.
  void saved(int64_t cut, Payload saved, ServerOutput& out);
  /// Sends again what the chief may not have, after the connection was made again.
  void repeat_to_chief(ServerOutput& out) const;

  Position position() const { return read_; }
  /// How many pushes are held, parts of the round that is being decided included.
  std::size_t num_held() const { return held_.size() + parts_.size(); }
  /// How many steps above the floor are known to be decided.
  std::size_t num_decided() const { return decided_.size(); }
  std::size_t num_waiting_pulls() const { return waiting_.size() + waiting_for_step_.size(); }

  auto operator<=>(const BasicServerMachine&) const = default;

 private:
  bool is_decided(int64_t step) const { return step < floor_ || decided_.contains(step); }
  void decide(int64_t step, ServerStore& store);
  HeldPush take(StepAttempt step);
  void move_floor(ServerStore& store);
  void answer_waiting(ServerStore& store, ServerOutput& out);

  void on(const PullRequest& pull, ServerStore& store, ServerOutput& out);
  void on(const PushRequest& push, ServerStore& store, ServerOutput& out);
  void on(const LogEntries& entries, ServerStore& store, ServerOutput& out);

  uint64_t epoch_;
  int32_t server_;
  Position read_;
  int64_t floor_;
  std::set<int64_t> decided_;  // above the floor
  std::map<StepAttempt, Payload> held_;
  std::vector<HeldPush> parts_;  // of the round that is decided next
  std::deque<LogEntry> unread_;
  // The floor that holds once so many entries are read.
  Position floor_after_;
  int64_t next_floor_;
  std::multimap<Position, PullRequest> waiting_;          // for a position
  std::multimap<int64_t, PullRequest> waiting_for_step_;  // for the decision on a step
  std::optional<RoundSquares> squares_;                   // of the round that is not decided
  std::optional<CutSaved> saved_;                         // of the last cut
};

using ServerMachine = BasicServerMachine<ProtocolRules>;
extern template class BasicServerMachine<ProtocolRules>;

}  // namespace lockstep::internal::server
