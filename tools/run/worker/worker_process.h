// One worker's process: how it is started, and what the launcher holds of it.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/process/file_descriptor.h"
#include "tools/run/signal_queue.h"
#include "tools/run/worker/worker_end.h"

namespace lockstep::tools {

/// What all workers of a start have in common.
struct StartSettings {
  const std::vector<std::string>* command = nullptr;
  const SignalQueue* signals = nullptr;
  rlimit open_files = {};  // the limit that the launcher was started with
  int stop_notices = -1;   // what the worker inherits, beside the standard streams: StopNotices::sender()
};

/// A started worker; the pipes' ends are the launcher's, non-blocking. It leads a process group of its own, and the
/// kernel kills it when the launcher dies.
struct WorkerProcess {
  pid_t pid = 0;
  std::chrono::steady_clock::time_point start;
  internal::FileDescriptor output;
  internal::FileDescriptor errors;
  /// Where it says why the program was not started. Nothing comes where it was.
  internal::FileDescriptor start_failure;
};

/// What a process is started with.
struct WorkerStart {
  std::string name;                             // "worker 3", for messages
  bool reads_input = false;                     // the launcher's standard input, unless that is a terminal
  const std::vector<std::string>* environment;  // its variables
  const std::vector<int>* cores;                // empty: all
  int end_notice = -1;                          // what it inherits too: EndNotice::receiver()
};

/// Starts a worker. Those that do not read the launcher's standard input read /dev/null. Whether the program could
/// be started is known when the worker has ended. Throws a ClusterError (LS-LAUNCH) where the system refuses a process
/// or a pipe. Call it on the main thread: the worker lives no longer than the thread that started it.
WorkerProcess start_worker(const WorkerStart& start, const StartSettings& settings);

/// How a worker whose process has ended with `status` ended.
WorkerEnd end_of(int index, const WorkerProcess& worker, int status);

}  // namespace lockstep::tools
