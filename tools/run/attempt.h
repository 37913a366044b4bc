// One start of all workers of a job, watched until all have ended.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/end_notice.h"
#include "tools/run/signal_queue.h"
#include "tools/run/stop_notices.h"
#include "tools/run/tasks.h"
#include "tools/run/watchdog.h"
#include "tools/run/worker/lines.h"
#include "tools/run/worker/sink.h"
#include "tools/run/worker/worker_end.h"
#include "tools/run/worker/worker_output.h"
#include "tools/run/worker/worker_process.h"

namespace lockstep::tools {

/// The launcher's own standard output and error; one sink where both are the same file.
struct Outputs {
  Sink* output;
  Sink* errors;
};

/// What came of an attempt.
struct AttemptResult {
  /// How each worker ended, in the order in which the launcher saw it.
  std::vector<WorkerEnd> ends;
  /// The worker that failed first; nothing where every one exited with 0.
  std::optional<WorkerEnd> first_failure;
  /// What that worker wrote to standard error last.
  std::vector<std::string> last_errors;
  /// Workers that were stopped because of the first failure, and those that failed by themselves after it.
  int stopped = 0;
  int failed_later = 0;
  /// The first signal that asked the job to end, 0 where none came; and whether it came before the first failure.
  int end_signal = 0;
  bool was_asked_first = false;
  /// Nobody failed, and the exit code is that of the first worker that ended as a worker was asked to, not by the
  /// launcher.
  bool was_worker_asked = false;
  /// A second such signal came, and all were killed; and whether that was before the first failure.
  bool was_forced = false;
  bool was_killed = false;
  /// Processes that the kernel would not let die.
  std::vector<pid_t> left;
  /// How often a task was started again alone.
  int restarts_alone = 0;
};

/// What each worker is started with.
struct WorkerPlan {
  int index = 0;  // among all workers of the job; of a task its place among those of this launcher
  std::vector<std::string> environment;
  std::vector<int> cores;  // empty: all
  std::string prefix;      // of its lines
  Task task = {};
};

/// What a job with parameter servers needs beside: its tasks do not all end together.
struct TaskSettings {
  bool has_chief = true;        // the plans have the chief
  bool has_all_workers = true;  // and all workers
  int restarts_before = 0;      // of the job
  int max_restarts = 0;
  double restart_pause = 1;  // seconds, before the first time that a task is started again alone
  EndNotice* end_notice = nullptr;
};

class Attempt {
 public:
  /// All references and the sinks must live longer. `grace` is the time between SIGTERM and SIGKILL. Before SIGTERM the
  /// others have that time, but 2 s at most, to end by themselves and to say what they have seen; the whole of it where
  /// the first one ended with the exit code that says that another one failed.
  Attempt(const StartSettings& settings, SignalQueue& signals, StopNotices& stops, Watchdog& watchdog, Outputs outputs,
          std::chrono::milliseconds grace, TaskSettings tasks = {});

  /// Starts a worker for each plan, whose indices follow each other, and returns when all have ended, no process of
  /// theirs is left, and their output is passed on. Tasks that end are treated as task_rules.h says: some are started
  /// again meanwhile. Throws a ClusterError (LS-LAUNCH) where one cannot be started; none is left then either. Call it
  /// once; the plans must live as long.
  AttemptResult run(const std::vector<WorkerPlan>& plans);

 private:
  struct Worker {
    int index;
    WorkerProcess process;
    WorkerOutput output;
    WorkerOutput errors;
    bool alive = true;
    bool was_exiting = false;  // already when the first failure was seen
    /// When this task, which has ended, is started again alone.
    std::optional<std::chrono::steady_clock::time_point> start_again_at = {};
  };

  void start();
  Worker start_one(std::size_t place, const std::vector<std::string>& environment);
  /// Waits until something happens, and does what follows from it.
  void wait();
  void read_outputs();
  void handle_signals();
  void handle(const SignalQueue::ReceivedSignal& received);
  /// Reaps this child, or all that have ended where `pid` is -1.
  void reap(pid_t pid);
  void ended(std::size_t place, int status);
  void end_job(int signal);
  void send_to_all(int signal);
  /// To all but those that are spared.
  void send_to_those_left(int signal);
  void take_first_failure(const WorkerEnd& end);
  /// Whether this end, which came after another worker's, says more about the cause.
  bool is_nearer_to_the_cause(const Worker& worker, const WorkerEnd& end) const;
  void stop_after(std::chrono::milliseconds time);
  void begin_grace();
  void kill_all();
  /// Kills what the workers have left behind.
  void clear_away();
  /// Passes on what ended workers had written.
  void drain();
  void say(const std::string& line);

  // What follows is of jobs with parameter servers (attempt_tasks.cpp).

  const Task& task_at(std::size_t place) const { return (*plans_)[place].task; }
  bool has_tasks() const { return plans_->front().task.role != TaskRole::kPeer; }
  /// A task has ended, and the job has not failed before.
  void task_ended(std::size_t place, const WorkerEnd& end);
  /// The chief has ended, so that the others are about to.
  void begin_end();
  void start_later(std::size_t place, const WorkerEnd& end);
  void start_what_is_due();
  int count_pending() const;
  std::optional<std::chrono::steady_clock::time_point> next_start() const;
  /// Starts none of those again that have ended; the evaluator where `with_evaluator`.
  void drop_pending(bool with_evaluator);
  bool has_other_worker(std::size_t place) const;
  /// Whether this one is waited for however long it takes: the evaluator, which has the last checkpoint to read.
  bool is_spared(std::size_t place) const;
  /// "3 workers", or "worker 1 and ps 0": who lives and is not spared.
  std::string who_is_left() const;

  const StartSettings& settings_;
  SignalQueue& signals_;
  StopNotices& stops_;
  Watchdog& watchdog_;
  const Outputs outputs_;
  const std::chrono::milliseconds grace_;
  const TaskSettings tasks_;
  const std::vector<WorkerPlan>* plans_ = nullptr;
  std::vector<int> starts_;      // of tasks, by place: how often each was started again
  bool has_ended_ = false;       // the chief has
  std::vector<LastLines> last_;  // by place in workers_
  std::vector<Worker> workers_;
  std::size_t alive_ = 0;
  std::size_t first_to_read_ = 0;
  /// A worker that ended as it, or another worker, had been asked to, with the exit code that lets the job go on later.
  std::optional<WorkerEnd> ended_as_asked_;
  std::optional<std::chrono::steady_clock::time_point> stop_at_;
  std::optional<std::chrono::steady_clock::time_point> kill_at_;
  bool sent_stop_ = false;
  bool sent_kill_ = false;
  std::vector<pollfd> polled_;
  AttemptResult result_;
};

/// Writes what the sinks hold. Returns when all is written or nobody reads any more. What is left is dropped when a
/// signal that asks the job to end comes, and, where `is_hurried`, when nothing could be written for a second. Gives
/// that signal, or 0.
int flush(Outputs outputs, SignalQueue& signals, bool is_hurried);

}  // namespace lockstep::tools
