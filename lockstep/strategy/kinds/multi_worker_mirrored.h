// Replicas on several workers, which are processes of one host or of many, over variables that are equal on all of
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/comm/timeouts.h"
#include "lockstep/core/denormals.h"
#include "lockstep/core/tuning/factored_gradients.h"
#include "lockstep/core/tuning/slots.h"
#include "lockstep/core/tuning/update_form.h"
#include "lockstep/core/tuning/wire_format.h"
#include "lockstep/strategy/kinds/mirrored.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tuning.h"

namespace lockstep {

/// Give all workers the same options. `cluster`, `devices`, `copies`, `factored_gradients` and the times other than
/// `timeouts.lost` may differ; an error names what else does.
struct MultiWorkerMirroredOptions {
  /// Who the workers are and which of them this process is. Without it: resolve_cluster().
  std::optional<ClusterSpec> cluster = std::nullopt;
  std::vector<std::string> devices = {};  // this worker's lanes, as MirroredOptions::devices
  /// Of the whole run, at least one for each lane of each worker. They are dealt to the workers in blocks whose sizes
  /// differ by at most one, the larger blocks first, and each worker deals its block to its lanes in the same way. The
  /// number of replicas decides results; workers and lanes do not. 0: one for each lane of each worker; then the
  /// workers' numbers of lanes must differ by at most one, the larger first.
  int64_t replicas = 0;
  Copies copies = Copies::kPerMemory;       // on each worker
  uint64_t seed = 0;                        // of initial values, random streams and shuffling
  int threads_per_replica = 1;              // intra-op threads; part of what decides bits
  int64_t verify_every = 100;               // runs between comparisons of all variables across workers; 0: never
  Denormals denormals = Denormals::kFlush;  // part of what decides bits
  std::string engine = "auto";              // what moves the bytes between workers: see JoinOptions
  WorkerTimeouts timeouts = {};
  // These four decide speed and memory, and no bits where `wire` is kExact.
  FactoredGradients factored_gradients = FactoredGradients::kAuto;
  UpdateForm update_form = UpdateForm::kAuto;  // of all variables
  WireFormat wire = WireFormat::kExact;        // of sums of gradients; part of what decides bits
  Slots slots = Slots::kWhole;                 // kSliced: each worker has a part of the optimizers' slots
  Tuning tuning = {};                          // the options that decide no bits, in one place
};

/// MirroredStrategy over several workers: the same program runs on each of them, and all members of Strategy mean all
/// replicas of all workers. A PerReplica holds the values of this worker's replicas. With the same number of replicas
/// the bits of all variables are the same on any number of workers and lanes, over any engine. With one worker it is
/// MirroredStrategy.
///
/// The constructor waits until all workers have come, at most `timeouts.join`. It throws what resolve_cluster() and
/// join() throw, and a UsageError where the workers' options differ. Where a worker fails, is gone or makes another
/// call, all others get an error that names it; the strategy can then be used no more, unless that error was thrown
/// with all workers still there (an exception in a step, a refused argument).
class MultiWorkerMirroredStrategy final : public Strategy {
 public:
  explicit MultiWorkerMirroredStrategy(MultiWorkerMirroredOptions options = {});
  ~MultiWorkerMirroredStrategy() override;
};

}  // namespace lockstep
