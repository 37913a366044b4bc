// The launcher's signals, read from a descriptor by its one loop.
#pragma once

#include <sys/types.h>

#include <csignal>

#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::tools {

/// While it lives, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGCHLD wait in it and SIGPIPE is ignored. A signal
/// that was ignored before, as SIGHUP under nohup, stays ignored. Made on the main thread, before any other thread.
class SignalQueue {
 public:
  struct ReceivedSignal {
    int signal = 0;
    pid_t child = 0;  // of SIGCHLD: the first child that ended since the last signal
  };

  /// Throws a ClusterError (LS-LAUNCH).
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  /// To wait on for POLLIN.
  int fd() const { return file_.get(); }
  /// Takes the next signal; false where none waits.
  bool next(ReceivedSignal& received);
  /// Gives a forked child the signals that the launcher was started with. Safe between fork and exec.
  void restore_in_child() const;

 private:
  internal::FileDescriptor file_;
  sigset_t mask_before_ = {};
  struct sigaction pipe_before_ = {};
  struct sigaction child_before_ = {};
};

/// Whether this signal asks the job to end.
inline bool asks_to_end(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

}  // namespace lockstep::tools
