// Workers that are processes of one host and exchange bytes through memory that all of them map.
#pragma once

#include <memory>

#include "lockstep/comm/shared_memory/rendezvous.h"
#include "lockstep/comm/timeouts.h"
#include "lockstep/comm/world.h"

namespace lockstep::internal::inline comm {

/// Joins the job (see rendezvous) and gives its World. While it lives, a thread watches the other workers, and a
/// worker that is gone or frozen ends the run for all, with one text on all (see WorkerMonitor).
///
/// The n-th call of agree() or exchange() succeeds on all workers or on none: it has succeeded when every worker has
/// taken all that it was sent, which stands in the shared memory, whoever dies next.
///
/// Nothing has a name in the file system. When the last process has ended, however it ended, nothing is left.
std::shared_ptr<World> join_shared_memory(const LocalJob& job, const WorkerTimeouts& timeouts);

}  // namespace lockstep::internal::comm
