// Keeps a lane's threads on the lane's cores.
#pragma once

#include <sched.h>

#include <optional>

#include "lockstep/replica/pool/cores.h"
#include "lockstep/replica/pool/lanes.h"

namespace lockstep::internal::inline replica {

/// Pins the calling thread, which belongs to the library, to its lane's cores for good. Where lanes are not pinned, it
/// may use all cores of the process afterwards, because the thread that made it may have been narrowed. Where the
/// system refuses to pin a lane, this is logged once and is no error: pinning decides speed alone.
void pin_replica_thread(const LanePlan& plan, int lane);

/// Keeps the thread that called run(), which carries lane 0, off the other lanes' cores, and restores its affinity at
/// the end. Holding the thread costs two system calls, so a run that is `brief` only moves it to lane 0's core if it is
/// elsewhere. It is held all the same where several replicas share lane 0 and there are cores without a lane: it sleeps
/// between its turns, and the system would wake it on an idle core, which costs about 60 us each time. A caller with
/// several intra-op threads is left alone: its OpenMP threads outlive the run and would inherit the narrow mask.
class CallerPin {
 public:
  CallerPin(const LanePlan& plan, bool brief);
  ~CallerPin();
  CallerPin(const CallerPin&) = delete;
  CallerPin& operator=(const CallerPin&) = delete;

 private:
  cpu_set_t before_;
  std::optional<WideAffinity> narrow_;  // while the thread is held
};

}  // namespace lockstep::internal::replica
