// What the kernel tells about a process.
#pragma once

#include <sys/types.h>

namespace lockstep::tools {

struct ProcessState {
  pid_t parent = 0;
  /// It is on its way out: it may have closed its files, so that others notice, and not have ended yet.
  bool is_exiting = false;
};

/// Of the process with this id; all zero where there is none.
ProcessState process_state(pid_t pid);

}  // namespace lockstep::tools
