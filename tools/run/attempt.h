// One start of all workers of a job, watched until all have ended.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/signal_queue.h"
#include "tools/run/stop_notices.h"
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
};

/// What each worker is started with.
struct WorkerPlan {
  int index = 0;  // among all workers of the job
  std::vector<std::string> environment;
  std::vector<int> cores;  // empty: all
  std::string prefix;      // of its lines
};

class Attempt {
 public:
  /// All references and the sinks must live longer. `grace` is the time between SIGTERM and SIGKILL. Before SIGTERM the
  /// others have that time, but 2 s at most, to end by themselves and to say what they have seen; the whole of it where
  /// the first one ended with the exit code that says that another one failed.
  Attempt(const StartSettings& settings, SignalQueue& signals, StopNotices& stops, Watchdog& watchdog, Outputs outputs,
          std::chrono::milliseconds grace);

  /// Starts a worker for each plan, whose indices follow each other, and returns when all have ended, no process of
  /// theirs is left, and their output is passed on. Throws a ClusterError (LS-LAUNCH) where one cannot be started; none
  /// is left then either. Call it once.
  AttemptResult run(const std::vector<WorkerPlan>& plans);

 private:
  struct Worker {
    int index;
    WorkerProcess process;
    WorkerOutput output;
    WorkerOutput errors;
    bool alive = true;
    bool was_exiting = false;  // already when the first failure was seen
  };

  void start(const std::vector<WorkerPlan>& plans);
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

  const StartSettings& settings_;
  SignalQueue& signals_;
  StopNotices& stops_;
  Watchdog& watchdog_;
  const Outputs outputs_;
  const std::chrono::milliseconds grace_;
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
