// The chief of a run: what the program's calls and the tasks' messages do to the ChiefMachine, to a record or by one.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/core/log.h"
#include "lockstep/server/local/strategy_gate.h"
#include "lockstep/server/protocol/chief_machine.h"
#include "lockstep/server/record/run_recorder.h"
#include "lockstep/server/record/run_replay.h"

namespace lockstep::internal::inline server {

class ChiefTask;

/// A step that was scheduled, as the program waits for it.
struct ScheduledStep {
  std::shared_ptr<ChiefTask> chief;
  int64_t number = 0;

  // Guarded by the chief's mutex; constant once is_decided is true.
  bool is_decided = false;
  Payload result = {};
  std::exception_ptr error = {};  // of a step that never counts
  int64_t order = 0;              // of a step that counts: how many of the run counted before
};

/// Carries messages to the other tasks.
struct TaskMail {
  std::function<void(const ToWorker&)> to_worker;
  std::function<void(const ToServer&)> to_server;
  std::function<void(int64_t step)> decided = {};  // called with the chief's mutex held
  /// Of a round of which servers have sent their squares: what its gradients are multiplied by. Empty without such.
  std::function<double(const RoundSummed&)> coefficient = {};
};

/// Has no thread of its own: whoever brings a call or a message works the machine, under the chief's mutex. Any thread.
/// Calls that wait are woken by whatever decides steps.
class ChiefTask : public std::enable_shared_from_this<ChiefTask> {
 public:
  ChiefTask(const ChiefOptions& options, const ChiefCut& begin, std::shared_ptr<const StrategyGate> gate, TaskMail mail,
            uint64_t epoch = 1);

  /// Before any task has sent a message: the run is recorded, or repeats a record until the step `until` is decided.
  void record(std::unique_ptr<RunRecorder> recorder) { recorder_ = std::move(recorder); }
  void replay(const RunEvents& run, std::vector<std::string> functions, int32_t workers, std::optional<int64_t> until);

  /// The strategy, by its gate.
  const void* owner() const { return gate_.get(); }
  /// A UsageError (LS-COORDINATE) after end().
  void require_not_ended() const;
  /// Throws the run's failure, if there is one.
  void require_not_failed() const;

  // The program's calls. Those that may wait are UsageErrors in a scheduled step, and inside a call of the strategy.

  /// Waits while the queue is full. Throws the first error, and a CancelledError where a step of `after` never counts.
  std::shared_ptr<ScheduledStep> schedule(StepRequest request,
                                          const std::vector<std::shared_ptr<ScheduledStep>>& after);
  /// Waits until the steps that were scheduled before have been decided; throws the first error.
  void join();
  /// The same, and leaves the first error to others.
  void drain();
  /// Whether all scheduled steps have been decided; throws the first error.
  bool done();
  void cancel();
  int64_t steps() const;
  /// All steps with lower numbers have been decided, and none of them will be run again.
  int64_t settled() const;
  /// How many entries its log has. In a replay waits until all of them were sent.
  Position position_sent();
  /// Where a next run begins, once all steps have been decided.
  ChiefCut next_begin() const;
  /// Begins a cut behind all decisions so far, and calls `fn` with the chief's part of it before anything else is
  /// decided. Waits while another cut is under way.
  void begin_cut(int64_t cut, FunctionRef<void(const ChiefCut&)> fn);
  void end_cut(int64_t cut);
  /// Waits until it is decided. Returns its result, or throws the first error, if nobody has got it, or the step's own.
  Payload result_of(const ScheduledStep& step);
  /// Waits until one of the steps is decided, and gives the place of the one that counted first of those that count.
  /// Throws as result_of().
  std::size_t first_of(const std::deque<std::shared_ptr<ScheduledStep>>& steps);

  /// Until go_on(), schedule() of other threads waits. Waits itself while another thread has it so.
  void hold_back();
  void go_on();
  /// Waits while another thread holds steps back.
  void wait_while_held_back();

  // The program reads values: what it reads is recorded, or comes from the record.

  /// The position of the log that the server must have read, and does not pass before end_read().
  Position begin_read();
  /// The program has read values to which so many steps, or rounds, were applied.
  void end_read(Position state);

  // The end of a run that is recorded or repeated, when all its steps were decided.

  /// Nothing more is recorded, and no read of the record is waited for. Where the record could not be written to its
  /// end, the run has failed.
  void end_record();
  /// Waits until all that the record has was done; throws where the program has not done its part of it.
  void end_replay();
  /// The replay ended where it was to end, or where its record does.
  bool has_stopped() const;

  // The tasks' messages.

  void receive(const ChiefMessage& message);
  /// Calls `welcome` with the worker's incarnation before anything is sent to it.
  void worker_joined(
      int32_t worker, FunctionRef<void(uint32_t incarnation)> welcome = [](uint32_t) {});
  void worker_lost(WorkerId worker);
  /// An entry that all servers carry out after the steps that were scheduled before, and before later ones.
  void change(Payload payload);
  /// Waits until all servers have applied what was decided so far. Throws the run's failure.
  void wait_for_servers();
  /// What all servers have at one place of the log: what each has given to CutSaved. Throws the run's failure.
  CutWhole cut();
  /// The attempt takes too long: its step is given to another worker.
  void overdue(StepAttempt step);
  /// Nobody is left to take a step that was given before: it is closed.
  void give_up_waiting();
  /// In a replay takes a worker's message to a server, which gets it when its turn comes. Evaluations are no part of
  /// the record: theirs go to the server at once.
  bool takes(const ToServer& message);
  /// A server is about to answer a pull.
  void answers(const ToWorker& message);
  /// The run cannot go on: everybody gets this error.
  void fail(std::exception_ptr error);
  /// The other tasks are gone: from now on nothing is sent.
  void end();

 private:
  /// Lets `fn` work the machine, and acts on what follows.
  template <class Fn>
  void work(const Fn& fn);
  void act(ChiefOutput& out);
  /// Does something of the record or the replay; what it throws ends the run.
  template <class Fn>
  void guard(const Fn& fn);
  void fail_now(std::exception_ptr error);
  /// In a replay: does all that is next and has come.
  void follow();
  void stop(LogLevel level, const std::string& why);
  enum class WaitsFor : uint8_t { kDecision, kServer };
  /// Waits for `is_so`. In a replay, fails where the program has to do something else first: where it waits for a
  /// decision, at once, and otherwise after a while.
  template <class Fn>
  void wait(std::unique_lock<std::mutex>& lock, const Fn& is_so, WaitsFor what = WaitsFor::kDecision);
  void require_program_goes_on(bool has_waited_long);
  void keep_ready_result(int64_t number);
  void close(const StepClosed& closed);
  void throw_first_error();
  void require_may_wait(const char* call) const;
  bool is_held_back() const { return holder_ != std::thread::id() && holder_ != std::this_thread::get_id(); }

  mutable std::mutex mutex_;
  std::condition_variable decided_;
  const std::shared_ptr<const StrategyGate> gate_;
  const TaskMail mail_;
  const bool in_rounds_;

  // Guarded by mutex_.
  ChiefMachine machine_;
  std::map<int64_t, std::shared_ptr<ScheduledStep>> open_;  // by number
  int64_t next_ = 0;                                        // above all numbers that were scheduled
  std::exception_ptr first_error_;                          // which nobody has got
  std::exception_ptr failure_;                              // of the run
  bool has_ended_ = false;
  std::set<uint32_t> ended_;     // kinds of steps for which all streams have ended
  int64_t counted_ = 0;          // steps of this run
  std::thread::id holder_ = {};  // who holds steps back
  int64_t next_cut_ = 1;
  std::optional<CutWhole> cut_;            // the last one
  std::unique_ptr<RunRecorder> recorder_;  // null: nothing is recorded
  uint64_t writes_ = 0;                    // of the gate, when the run began
  int64_t round_completed_ = -1;           // recorded last: before which number
  std::unique_ptr<RunReplay> replay_;      // null: it is no replay
  std::optional<int64_t> until_;           // the step after which it stops
  bool has_stopped_ = false;
  std::set<std::thread::id> schedulers_;  // in a replay: threads that have scheduled
};

}  // namespace lockstep::internal::server
