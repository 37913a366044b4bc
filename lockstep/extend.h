// Extension: what authors of strategies, of update rules, of sources of data and of ways to reach other workers derive
// from. docs/strategies.md, docs/training.md and docs/data.md describe them.
#pragma once

// A strategy of one's own: StrategySetup has its four decisions, Topology, Placement, Reducer and Synchronization.
// lockstep/testing/conformance.h tests what comes of them.
#include "lockstep/reduce/reducer.h"            // IWYU pragma: export
#include "lockstep/replica/topology.h"          // IWYU pragma: export
#include "lockstep/strategy/setup.h"            // IWYU pragma: export
#include "lockstep/strategy/state_items.h"      // IWYU pragma: export
#include "lockstep/strategy/strategy.h"         // IWYU pragma: export
#include "lockstep/variable/placement.h"        // IWYU pragma: export
#include "lockstep/variable/synchronization.h"  // IWYU pragma: export

// An update rule of one's own: UpdateRule.
#include "lockstep/optim/rules/update_rule.h"  // IWYU pragma: export

// A source of data of one's own: Source for samples in any order, StreamSource for samples in sequence, RecordFiles for
// records of files, and Stage for what is made of another source.
#include "lockstep/data/dataset.h"                // IWYU pragma: export
#include "lockstep/data/sources/records.h"        // IWYU pragma: export
#include "lockstep/data/sources/stream_source.h"  // IWYU pragma: export
#include "lockstep/data/stages/stage.h"           // IWYU pragma: export

// The other workers: World and Windows, join(), which makes a World of a job's processes, and ClusterResolver, which
// says who they are. lockstep/testing/world_conformance.h tests a World.
#include "lockstep/cluster/cluster_resolver.h"     // IWYU pragma: export
#include "lockstep/cluster/sources/environment.h"  // IWYU pragma: export
#include "lockstep/comm/join/join.h"               // IWYU pragma: export
#include "lockstep/comm/windows.h"                 // IWYU pragma: export
#include "lockstep/comm/world.h"                   // IWYU pragma: export
