// Lockstep: one training step on many replicas, for C++ programs built on LibTorch.
#pragma once

#include "lockstep/cluster/cluster_resolver.h"  // IWYU pragma: export
#include "lockstep/cluster/cluster_spec.h"      // IWYU pragma: export
#include "lockstep/cluster/environment.h"       // IWYU pragma: export
#include "lockstep/cluster/resolve_cluster.h"   // IWYU pragma: export
#include "lockstep/cluster/secret.h"            // IWYU pragma: export
#include "lockstep/comm/join.h"                 // IWYU pragma: export
#include "lockstep/core/denormals.h"            // IWYU pragma: export
#include "lockstep/core/error.h"                // IWYU pragma: export
#include "lockstep/core/exit_codes.h"           // IWYU pragma: export
#include "lockstep/core/ids.h"                  // IWYU pragma: export
#include "lockstep/core/log.h"                  // IWYU pragma: export
#include "lockstep/core/per_replica.h"          // IWYU pragma: export
#include "lockstep/core/sha256.h"               // IWYU pragma: export
#include "lockstep/data/batch.h"                // IWYU pragma: export
#include "lockstep/data/dataset.h"              // IWYU pragma: export
#include "lockstep/data/distributed_dataset.h"  // IWYU pragma: export
#include "lockstep/data/sources.h"              // IWYU pragma: export
#include "lockstep/optim/moving_average.h"      // IWYU pragma: export
#include "lockstep/optim/optimizer.h"           // IWYU pragma: export
#include "lockstep/reduce/reducer.h"            // IWYU pragma: export
#include "lockstep/reduce/reduction.h"          // IWYU pragma: export
#include "lockstep/replica/replica_context.h"   // IWYU pragma: export
#include "lockstep/replica/sync_batch_norm.h"   // IWYU pragma: export
#include "lockstep/replica/topology.h"          // IWYU pragma: export
#include "lockstep/strategy/central_storage.h"  // IWYU pragma: export
#include "lockstep/strategy/make_strategy.h"    // IWYU pragma: export
#include "lockstep/strategy/metrics.h"          // IWYU pragma: export
#include "lockstep/strategy/mirrored.h"         // IWYU pragma: export
#include "lockstep/strategy/one_device.h"       // IWYU pragma: export
#include "lockstep/strategy/setup.h"            // IWYU pragma: export
#include "lockstep/strategy/state_items.h"      // IWYU pragma: export
#include "lockstep/strategy/strategy.h"         // IWYU pragma: export
#include "lockstep/variable/placement.h"        // IWYU pragma: export
#include "lockstep/variable/replicated.h"       // IWYU pragma: export
#include "lockstep/variable/variable.h"         // IWYU pragma: export
