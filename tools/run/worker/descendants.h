// What workers have started and left behind.
#pragma once

#include <sys/types.h>

#include <vector>

#include "tools/run/signal_queue.h"

namespace lockstep::tools {

/// Makes this process the parent of all its descendants whose own parents have died, so that none is lost from sight.
void adopt_orphans();

/// Kills every process below this one, however deep, except `spared`, and reaps it. Gives the ids of those that the
/// kernel had not let die within five seconds. Reads SIGCHLD from `signals`, and gives the other signals that came
/// meanwhile in `other_signals`.
std::vector<pid_t> kill_descendants(SignalQueue& signals, pid_t spared, std::vector<int>& other_signals);

}  // namespace lockstep::tools
