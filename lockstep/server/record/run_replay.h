// What lets a run of parameter servers repeat a recorded one: it stands between the tasks, and holds each message back
// until the record says that it is its turn.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/server/protocol/chief_machine.h"
#include "lockstep/server/record/run_record.h"

namespace lockstep::internal::inline server {

/// Repeats one call of coordinate(). The chief calls it under its own lock. Tasks and machines are those of any run,
/// and see a network that is slow in just the right places:
///
/// - Each step is given at once, to the worker that ran it, and waits here until that worker has run all that it ran
///   before. Where workers have run a step that another one was given later, or that was closed meanwhile, they run it
///   again too, because it has taken a batch of its worker's stream.
/// - Reports come to the chief in the order of the record, and what the program did comes between them as it did.
/// - A pull goes to the server when there is the state that it saw. An entry of the log that changes values goes there
///   when all pulls that the record has of the state before were answered.
///
/// What a step did after it was too late does not matter, and may depend on when that was: it need not be the same.
///
/// It cannot get stuck, because the recorded run did not: but for a program that does something else, or a record that
/// contradicts itself, which waits_for_program() finds.
///
/// Runs of a step are told apart by a label: 0 for the one that the chief's machine gives and decides on, which was not
/// late, and 1, 2, ... for the others. A run that was given up may end before that one or after it.
class RunReplay final : public StepPlan {
 public:
  struct Mail {
    std::function<void(const ToWorker&)> to_worker;
    std::function<void(const ToServer&)> to_server;
  };
  /// `functions` are the names of steps, `begin` is where the log begins, and `error_of` gives the text of an error
  /// that a report has. `run` outlives it.
  RunReplay(const RunEvents& run, std::vector<std::string> functions, int32_t workers, Position begin, Mail mail,
            std::function<std::string(const Payload&)> error_of);

  int32_t worker_of(int64_t step) const override;

  // Messages.

  void carry(const ToWorker& message);  // of the chief
  void carry(const ToServer& message);  // of the chief, or of a worker
  /// A server has answered a pull, and will not go on before this returns.
  void answered(const PulledValues& values);
  void reported(const StepReport& report);
  /// Lets the machine take what is next, if that has come. A DivergenceError (LS-REPLAY-DEPARTS) where it is something
  /// else than what the record has.
  bool take_next(ChiefMachine& machine, ChiefOutput& out);

  /// The step of the report that the machine took last.
  std::optional<int64_t> last_reported() const { return last_reported_; }

  // What the program does.

  /// Whether it may schedule a step now: everything has happened that had happened before.
  bool may_schedule() const { return endings_.empty() || endings_.front() > scheduled_; }
  /// It is about to schedule a step, after so many calls that may have changed values.
  void schedules(int64_t step, uint64_t writes);
  void wants_cancel() { ++cancels_wanted_; }
  bool has_cancelled() const { return cancels_wanted_ == 0; }
  /// Whether it has completed a round here where it waited for a step.
  bool completes_round() const { return rounds_completed_.contains(scheduled_); }
  /// The state that a read here saw; nothing where the record has none. Until end_read() no later one comes.
  std::optional<Position> read_here();
  void end_read();
  /// All reads that are still to come, up to here, are of the state after all steps that were scheduled. Where the run
  /// has ended, none comes.
  void drains(bool has_ended = false);
  /// Nothing of the log is held back.
  bool has_sent_all() const { return entries_.empty(); }
  /// The server has been sent what makes this state, and will come to it.
  bool has_sent(Position state) const { return sent_state_ >= state && position_of(state).has_value(); }
  /// The position of the log behind which the state is this one, when that entry was sent.
  std::optional<Position> position_of(Position state) const;
  /// What the next event needs of the program; empty where it needs nothing, or there is none.
  std::string waits_for_program() const;
  /// No worker can go on: each has nothing to do, or waits for values that are held back.
  bool is_stuck() const;
  /// Where workers are stuck because of a read that does not come: goes on without it. It decides nothing.
  bool passes_over_read();

  /// A step was decided.
  void decided(int64_t step);
  void streams_ended(uint32_t function);
  /// Everything that the record has was done.
  bool is_at_end() const { return at_ == events_.size(); }
  bool is_whole() const { return run_.is_whole; }
  /// The lowest step that a worker is still to run though it is decided.
  int64_t lowest_late() const { return late_.empty() ? INT64_MAX : *late_.begin(); }
  /// Nothing is held back any more: what has no answer gets none.
  void let_go();

 private:
  /// A step that a worker has run, as the record has it.
  struct Ran {
    const RecordEvent* event = nullptr;
    StepAttempt label = {};
    bool is_sent = false;      // to its worker
    std::size_t answered = 0;  // pulls; of those that are left, nobody is waited for when it has come
    bool has_come = false;
  };
  using Place = std::size_t;  // in `ran_`

  std::string named(const Ran& ran) const;
  [[noreturn]] void depart(const Ran& ran, const std::string& how) const;
  void compare(const Ran& ran, const StepReport& report) const;
  void deliver_steps(int32_t worker);
  void deliver_pulls();
  void deliver_entries();
  bool has_reader() const { return !reads_.empty() && reads_.front().second <= sent_state_; }
  bool may_pass_state() const;
  std::string what_holds_back() const;
  void note_answer(Position state);
  void make_report(const GiveStep& give, StepOutcome outcome);

  const RunEvents& run_;
  const std::vector<std::string> functions_;
  const Mail mail_;
  const std::function<std::string(const Payload&)> error_of_;

  // The record.
  std::vector<const RecordEvent*> events_ = {};  // that happen in order
  std::size_t at_ = 0;                           // of the next one
  std::vector<Ran> ran_ = {};                    // in the order of their events
  std::size_t next_ran_ = 0;
  std::map<StepAttempt, Place> places_ = {};
  std::vector<std::deque<Place>> of_worker_ = {};  // that it is still to be given
  std::vector<std::deque<Place>> at_worker_ = {};  // that it was given and has not reported
  std::deque<int64_t> endings_ = {};  // how many steps were scheduled at each event to come that closes steps
  std::map<int64_t, Position> changes_ = {};
  std::set<int64_t> rounds_completed_ = {};
  std::deque<std::pair<int64_t, Position>> reads_ =
      {};                                        // that are to come: how many steps were scheduled, and the state
  std::map<Position, int64_t> unanswered_ = {};  // by state: pulls that the record has

  // What was done of it.
  int64_t scheduled_ = 0;
  Position changes_so_far_ = 0;
  int64_t cancels_wanted_ = 0;
  std::optional<int64_t> last_reported_ = std::nullopt;
  bool has_let_go_ = false;
  std::map<StepAttempt, GiveStep> given_ = {};      // that a worker has not been sent
  std::map<StepAttempt, StepReport> arrived_ = {};  // by label
  std::deque<StepReport> made_ = {};                // of steps that no worker runs
  std::vector<uint64_t> gives_ = {};                // by worker
  std::vector<uint64_t> reports_ = {};
  std::vector<uint64_t> noted_ = {};
  std::multiset<int64_t> late_ = {};
  std::multimap<Position, ToServer> pulls_ = {};  // by the state that they wait for
  std::map<StepAttempt, Position> asking_ = {};   // steps that wait for an answer: the state that it is to have
  std::vector<Position> states_ = {};             // by state: the position behind the entry that made it
  const Position begin_;                          // of the log
  Position next_entry_;                           // of the log, that comes from the chief
  std::deque<LogEntries> entries_ = {};           // one each, that the server has not been sent
  Position sent_state_ = 0;                       // that the server has been sent
  std::map<int64_t, GiveStep> unknown_ = {};      // steps that were given and that the record does not have
  bool is_reading_ = false;                       // what the first one of reads_ is
};

/// Throws a DataError (LS-RUN-RECORD) where the record names a worker that a run of so many does not have.
void require_workers(const RunEvents& run, int64_t workers);
/// The name of a step's function: one of `names`, or what a Trainer's steps are called.
std::string name_of_function(uint32_t function, const std::vector<std::string>& names);

}  // namespace lockstep::internal::server
