// How a worker ended, and what follows from it for the job.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace lockstep::tools {

struct WorkerEnd {
  enum class Kind {
    kExited,      // `value` is the exit code
    kSignalled,   // `value` is the signal
    kNotStarted,  // `value` is the errno of exec
    kNotPinned,   // `value` is the errno of sched_setaffinity
  };
  int worker = 0;  // of the job; of a job with parameter servers the task's place at its launcher
  pid_t pid = 0;
  Kind kind = Kind::kExited;
  int value = 0;
  double seconds = 0;     // since the start
  std::string task = {};  // "ps 0", in a job with parameter servers; otherwise empty

  bool failed() const { return kind != Kind::kExited || value != 0; }
};

/// The end that a status of waitpid() means.
WorkerEnd end_of(int worker, pid_t pid, int status, double seconds);

/// "worker 3 (pid 77) exited with code 1, 0.5 s after the start". `program` is the program's name, for one that could
/// not be started.
std::string text_of(const WorkerEnd& end, const std::string& program);

/// "worker 3", "ps 0"
std::string name_of(const WorkerEnd& end);

/// What a shell would give: the exit code; 128 + the signal; 127 for a program that was not found, 126 for one that
/// could not be started for another reason.
int exit_code_of(const WorkerEnd& end);

/// Whether a worker that ends so has hardly followed another one's end: a signal other than those by which programs
/// give up themselves (SIGABRT, SIGPIPE) or are stopped (SIGTERM).
bool was_killed_from_outside(const WorkerEnd& end);

/// Whether a worker says that another one failed: the job may be started again (core/process/exit_codes.h).
bool only_lost_another(const WorkerEnd& end);
/// Whether a worker says what was wrong with it: its data, its configuration or its program.
bool says_its_own_error(const WorkerEnd& end);

/// Whether starting the job again may help. It cannot where the command line is wrong (2, 126 and 127), nor where the
/// program says that its configuration or its data are wrong (core/process/exit_codes.h).
bool is_restartable(const WorkerEnd& end);

/// How long to wait before restart number `restart`, which counts from 1: `first` seconds, then twice as long each
/// time, up to 30 s.
std::chrono::milliseconds pause_before(int restart, double first);

/// "SIGTERM", or "signal 35" for one that has no name.
std::string signal_text(int signal);

}  // namespace lockstep::tools
