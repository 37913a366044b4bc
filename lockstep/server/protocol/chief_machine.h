// The chief of a parameter-server run as a state machine: the queue of steps, who has which, and the log of decisions.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/server/protocol/entry_log.h"
#include "lockstep/server/protocol/messages.h"
#include "lockstep/server/protocol/rules.h"
#include "lockstep/server/protocol/step_table.h"
#include "lockstep/server/protocol/worker_count.h"

namespace lockstep::internal::inline server {

struct ChiefOptions {
  int32_t workers = 2;  // of the run, also while fewer are alive: W
  /// 0: a chief that only deals out steps without pushes, as the parts of an evaluation.
  int32_t servers = 1;
  /// Without a value, steps begin as workers are free; k: a worker's c-th step sees at least the first c - k steps of
  /// each other worker, and all of its own; 0: steps are parts of rounds of W.
  std::optional<int64_t> staleness = {};
  /// In rounds: servers send squares of each round's sum, from which decide_round() has the coefficient.
  bool squares = false;
  uint32_t attempts = 3;        // how often a step is given again
  uint32_t window = 2;          // steps that a worker has at a time, the one at hand included
  uint64_t most_behind = 4096;  // entries that a server may lack before no more steps are given
  uint64_t most_queued = 1'000'000;
  uint64_t most_argument_bytes = uint64_t{64} << 20;
  /// A server that has not read so many of the entries that it was sent gets no others. Where each entry is a message
  /// to each server, a chief of many servers does little else than send them.
  uint64_t eager = std::numeric_limits<uint64_t>::max();
  auto operator<=>(const ChiefOptions&) const = default;
};

/// What of a cut is the chief's: saved in the checkpoint, and what a restore begins with.
struct ChiefCut {
  Position position = 0;  // of the log, the entry of the cut included
  int64_t counted = 0;    // steps that count, in all
  int64_t floor = 0;      // below it all numbers are decided
  std::vector<int64_t> counted_above = {};
  std::vector<int64_t> closed_above = {};
  auto operator<=>(const ChiefCut&) const = default;
};

/// The decided numbers above the floor, of which a server has to know at a restore.
std::set<int64_t> decided_above(const ChiefCut& cut);

/// What is scheduled.
struct StepRequest {
  uint32_t kind = 0;  // which function
  Payload arguments = {};
  uint64_t argument_bytes = 0;
  /// Steps whose results are arguments. It is given when they are there, and sees what these steps have pushed.
  /// Steps that are decided already need not be named.
  std::vector<int64_t> after = {};
};

/// Why a step never counts.
enum class ClosedBecause : uint8_t {
  kFailed,        // its function threw, or a server refused its push; the payload is the error
  kLostTooOften,  // all of its workers were lost or took too long
  kCancelled,     // by cancel(), or because of another step's error, or because a step before it has no result
  kStreamEnded,   // no worker has data for it
};

/// The step counts; its result is the report's payload.
struct StepCounted {
  int64_t step = 0;
  int32_t worker = 0;
  Payload result = {};
};
/// The step never counts. At most one event of kFailed or kLostTooOften comes until all other steps are closed too:
/// that is the first error.
struct StepClosed {
  int64_t step = 0;
  ClosedBecause why = ClosedBecause::kCancelled;
  Payload error = {};
  std::vector<int32_t> workers = {};  // that it was given to, in order
};
/// All workers' streams for this kind of step have ended.
struct StreamsEnded {
  uint32_t kind = 0;
};
/// All servers have sent their squares of this round: answer by decide_round().
struct RoundSummed {
  int64_t round = 0;
  std::vector<Payload> squares = {};  // by server
};
/// All servers have said what became of their part of the cut; the manifest comes next.
struct CutWhole {
  int64_t cut = 0;
  ChiefCut chief = {};
  std::vector<Payload> saved = {};  // by server
};

using ChiefEvent = std::variant<StepCounted, StepClosed, StreamsEnded, RoundSummed, CutWhole>;

struct ChiefOutput {
  std::vector<ToWorker> to_workers;
  std::vector<ToServer> to_servers;
  std::vector<ChiefEvent> events;
};

/// Which worker gets which step, where that is known: in a replay.
class StepPlan {
 public:
  virtual ~StepPlan() = default;
  virtual int32_t worker_of(int64_t step) const = 0;
};

/// A value, as BasicWorkerMachine. It decides alone, and only collect() sends what follows from decisions.
template <class Rules>
class BasicChiefMachine {
 public:
  /// A higher epoch for each start of the job. Where the number of workers is another one than before the restore,
  /// rounds begin anew at the next multiple of it; numbers before that are closed.
  explicit BasicChiefMachine(const ChiefOptions& options, uint64_t epoch = 1, const ChiefCut& restored = {});

  // What the program does.

  /// False where schedule() has to wait, unless nothing is queued: one step's arguments may be larger than the bound.
  bool has_room(uint64_t argument_bytes) const;
  /// Returns the step's number: one that the restored cut left out, or else the next one.
  int64_t schedule(StepRequest request);
  /// Holds for all steps that are scheduled from now on, and for none before. In rounds it completes the round.
  void set_rates(Payload rates);
  /// An entry kChange. In order: after all steps that were scheduled before have been decided, and before later ones
  /// begin; it completes a round. Otherwise at once.
  void change(Payload payload, bool in_order);
  /// In rounds: the round that lacks steps will have no more; their numbers are closed. Otherwise nothing.
  void complete_round();
  /// How many steps a worker has at a time from now on.
  void set_window(uint32_t steps) { options_.window = steps; }
  /// Closes all steps that do not count. Who runs one goes on to its end, and gets a next step only then.
  void cancel(ChiefOutput& out);
  /// False where the last one is not whole yet. The cut comes after all decisions so far. CutWhole follows when all
  /// servers have called saved(): with their files for a checkpoint, or at once where the cut is to be read.
  bool begin_cut(int64_t cut);
  /// Servers need not keep the cut any longer.
  void end_cut(int64_t cut);
  void decide_round(int64_t round, double coefficient, bool apply, ChiefOutput& out);
  /// From now on the plan, which must outlive the machine, names the worker of each step, whatever else that one has.
  void follow(const StepPlan& plan) { plan_ = &plan; }

  // What becomes of tasks.

  /// A worker with this index is there; one that had the index is given up. Returns its incarnation.
  uint32_t worker_joined(int32_t worker, ChiefOutput& out);
  /// Its steps are given to others. Of an incarnation that was given up already: nothing.
  void worker_lost(WorkerId worker, ChiefOutput& out);
  /// The attempt takes too long: the step is given to another worker. Where it is not under way: nothing.
  void step_overdue(StepAttempt step, ChiefOutput& out);
  /// Nobody can take a step that was given before and was lost or overdue: the lowest one is closed, as if it had been
  /// given too often. Where there is none: nothing.
  void give_up_waiting(ChiefOutput& out);
  void receive(const ChiefMessage& message, ChiefOutput& out);
  /// Sends again what the worker or the server may not have. Of a server, its ServerRead comes first.
  void repeat_to_worker(WorkerId worker, ChiefOutput& out);
  void repeat_to_server(int32_t server) { log_.send_again(static_cast<std::size_t>(server)); }
  /// Tells workers which of their reports have arrived, where no step that was given has told it.
  void note_reports(ChiefOutput& out);

  /// Decides rounds, gives steps, and sends entries.
  void collect(ChiefOutput& out);

  // What is so.

  uint64_t epoch() const { return epoch_; }
  /// How many steps count, those before a restore included.
  int64_t steps() const { return counted_; }
  /// All steps with lower numbers are decided.
  int64_t settled() const { return steps_.floor(); }
  int64_t num_queued() const { return queued_; }
  Position position() const { return log_.end(); }
  bool is_cutting() const { return cut_.has_value(); }
  /// The chief's part of the cut that is under way.
  const ChiefCut& cutting() const { return cut_->chief; }
  const EntryLog& log() const { return log_; }
  bool is_alive(WorkerId worker) const;
  /// The worker has this attempt, and it may count.
  bool is_awaited(WorkerId worker, StepAttempt step) const;

  auto operator<=>(const BasicChiefMachine&) const = default;

  /// The result of a part of a round that is done and not decided; null for any other step. Steps that take it as an
  /// argument are given before the round is decided.
  const Payload* ready_result(int64_t step) const {
    return steps_.has(step) && steps_[step].state == StepState::kReady ? &steps_[step].result : nullptr;
  }

 private:
  /// A step that a worker was given and has not reported.
  struct Running {
    GiveStep give = {};
    bool counts = true;  // false: the attempt was given up, and only occupies the worker
    auto operator<=>(const Running&) const = default;
  };
  struct Worker {
    bool is_alive = false;
    uint32_t incarnation = 0;
    uint64_t gives = 0;
    uint64_t reports = 0;
    uint64_t noted = 0;  // of the reports, what the worker was told
    std::vector<Running> running = {};
    WorkerCount count = WorkerCount();
    Position joined_at = 0;
    bool was_passed = false;        // others did not wait for its count
    std::set<uint32_t> ended = {};  // kinds of steps for which it has no more data
    auto operator<=>(const Worker&) const = default;

    int64_t at_work() const;  // steps of it that may count
  };
  struct Change {
    int64_t before = 0;  // the first number that was scheduled after it
    Payload payload = {};
    auto operator<=>(const Change&) const = default;
  };
  struct Cut {
    int64_t id = 0;
    ChiefCut chief = {};
    std::vector<std::optional<Payload>> saved = {};
    auto operator<=>(const Cut&) const = default;
  };
  struct Summing {
    int64_t round = 0;
    std::vector<int64_t> parts = {};
    std::vector<std::optional<Payload>> squares = {};
    auto operator<=>(const Summing&) const = default;
  };

  bool in_rounds() const { return options_.staleness == 0; }
  bool is_bounded() const { return options_.staleness.has_value() && !in_rounds(); }
  Worker& worker(int32_t index) { return workers_[static_cast<std::size_t>(index)]; }
  const Worker& worker(int32_t index) const { return workers_[static_cast<std::size_t>(index)]; }

  void on(const StepReport& report, ChiefOutput& out);
  void on(const ServerRead& read, ChiefOutput& out);
  void on(const RoundSquares& squares, ChiefOutput& out);
  void on(const CutSaved& saved, ChiefOutput& out);

  int64_t next_number();
  void close_numbers(int64_t end);
  void decide(const StepReport& report, ChiefOutput& out);
  void count(int64_t step, WorkerId by, Position position, const Payload& result, ChiefOutput& out);
  void close(int64_t step, ClosedBecause why, const Payload& error, ChiefOutput& out);
  void close_unlogged(int64_t first, ClosedBecause why, const Payload& error, ChiefOutput& out);
  void close_on_servers(int64_t step);
  void abandon(Running& running, ChiefOutput& out);
  void withdraw(const Running& running, ChiefOutput& out) const;
  void give_again(const std::vector<int64_t>& steps, ChiefOutput& out);
  void meet_dependents(StepRecord& record, Position position);
  void leave_queue(const StepRecord& record);
  void stream_ended(Worker& from, uint32_t kind, ChiefOutput& out);
  bool have_all_ended(uint32_t kind) const;
  void note_reports(WorkerId id, ChiefOutput& out);
  ChiefCut counters() const;

  // collect()
  void decide_rounds(ChiefOutput& out);
  void count_round(int64_t round, const std::vector<int64_t>& parts, double coefficient, bool apply, ChiefOutput& out);
  void log_round(int64_t round, double coefficient, bool apply, const Payload& rates);
  void log_changes();
  std::optional<int64_t> next_to_give();
  std::optional<int32_t> choose_worker(uint32_t kind);
  void give(int64_t step, int32_t index, ChiefOutput& out);
  bool has_room(const Worker& one, uint32_t kind) const;
  /// Others wait for its count before they begin steps of this kind.
  bool holds_up(const Worker& one, uint32_t kind) const;
  std::optional<int64_t> lowest_count(const Worker& except, uint32_t kind) const;
  int64_t next_index(const Worker& one, uint32_t kind) const;

  ChiefOptions options_;
  uint64_t epoch_;
  int64_t counted_;
  StepTable steps_;
  int64_t next_;             // from here on numbers are looked for that schedule() may take
  int64_t next_to_give_;     // from here on numbers were never given
  std::set<int64_t> again_;  // below next_to_give_: to be given, or given again
  int64_t queued_ = 0;
  uint64_t queued_bytes_ = 0;
  Payload rates_;
  std::deque<Change> changes_;
  EntryLog log_;
  Position seen_by_all_ = 0;  // every step that is given from now on sees it
  std::vector<Worker> workers_;
  std::optional<Cut> cut_;
  std::optional<Summing> summing_;
  const StepPlan* plan_ = nullptr;
};

using ChiefMachine = BasicChiefMachine<ProtocolRules>;
extern template class BasicChiefMachine<ProtocolRules>;

}  // namespace lockstep::internal::server
