// Keeps a lane's threads on the lane's cores.
#pragma once

#include <sched.h>

#include <optional>

#include "lockstep/replica/cores.h"
#include "lockstep/replica/lanes.h"

namespace lockstep::internal {

/// Pins the calling thread, which belongs to the library, to its lane's cores for good; where lanes are not pinned, to
/// all cores of the process, since the thread that made it may have been narrow. A refusal by the system is logged
/// once, because pinning is speed and nothing else.
void pin_replica_thread(const LanePlan& plan, int lane);

/// Keeps the thread that called run(), which carries lane 0, off the other lanes' cores, and gives its affinity back
/// when it ends. Holding the thread costs two system calls, so a run that is `brief` only moves it to lane 0's core if
/// it is elsewhere. Where several replicas share the lane, and there are cores without a lane, it is held all the same:
/// it sleeps between its turns, and the system would wake it on an idle core, some 60 us each time. A caller with
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

}  // namespace lockstep::internal
