// Lockstep: one training step on many replicas, for C++ programs built on LibTorch. This header gives the whole
// library. Two headers give a part of it: lockstep/data.h has data sets and streams, and lockstep/extend.h has what
// authors of strategies, rules and sources derive from.
//
// A training loop uses these names:
//
//   MirroredStrategy, OneDeviceStrategy, CentralStorageStrategy,   where the replicas run; each takes its options
//   MultiWorkerMirroredStrategy, make_strategy
//   Strategy                        run, evaluate, reduce, make_module, make_optimizer, distribute, ...
//   ReplicaContext                  what a step may do: model(ctx), ctx.scale_loss(), optimizer.step(ctx), ...
//   Replicated, Variable            what is kept equal on all replicas
//   Optimizer                       reduces gradients, then updates
//   DistributedDataset, Batch       which samples each replica gets
//   PerReplica, Reduction           what a step returns, and how it becomes one value
//   Checkpoint, CheckpointManager   everything that a run is, in files
//   Trainer, Callback, History      fit, evaluate and predict: the loop above, already written
//   Error                           base of all errors; its leaves say what the caller can do
#pragma once

// The loop.
#include "lockstep/checkpoint/checkpoint.h"                 // IWYU pragma: export
#include "lockstep/checkpoint/checkpoint_manager.h"         // IWYU pragma: export
#include "lockstep/choice/make_strategy.h"                  // IWYU pragma: export
#include "lockstep/core/error.h"                            // IWYU pragma: export
#include "lockstep/core/ids.h"                              // IWYU pragma: export
#include "lockstep/core/per_replica.h"                      // IWYU pragma: export
#include "lockstep/optim/optimizer.h"                       // IWYU pragma: export
#include "lockstep/reduce/reduction.h"                      // IWYU pragma: export
#include "lockstep/replica/replica_context.h"               // IWYU pragma: export
#include "lockstep/strategy/kinds/central_storage.h"        // IWYU pragma: export
#include "lockstep/strategy/kinds/mirrored.h"               // IWYU pragma: export
#include "lockstep/strategy/kinds/multi_worker_mirrored.h"  // IWYU pragma: export
#include "lockstep/strategy/kinds/one_device.h"             // IWYU pragma: export
#include "lockstep/strategy/strategy.h"                     // IWYU pragma: export
#include "lockstep/variable/module/replicated.h"            // IWYU pragma: export
#include "lockstep/variable/variable.h"                     // IWYU pragma: export

// What stands beside the loop: schedules of rates, rules and averages; metrics; layers and what modules consist of.
#include "lockstep/layers/convert_batch_norm.h"         // IWYU pragma: export
#include "lockstep/layers/sync_batch_norm.h"            // IWYU pragma: export
#include "lockstep/optim/moving_average.h"              // IWYU pragma: export
#include "lockstep/optim/rules/learning_rate_bridge.h"  // IWYU pragma: export
#include "lockstep/optim/rules/rules.h"                 // IWYU pragma: export
#include "lockstep/optim/rules/schedule.h"              // IWYU pragma: export
#include "lockstep/strategy/metrics.h"                  // IWYU pragma: export
#include "lockstep/variable/module/buffers.h"           // IWYU pragma: export
#include "lockstep/variable/module/summary.h"           // IWYU pragma: export

// The Trainer: the loop with callbacks, for programs that do not write it themselves.
#include "lockstep/train/callbacks.h"        // IWYU pragma: export
#include "lockstep/train/html_report.h"      // IWYU pragma: export
#include "lockstep/train/tensor_board.h"     // IWYU pragma: export
#include "lockstep/train/trainer.h"          // IWYU pragma: export
#include "lockstep/train/trainer_metrics.h"  // IWYU pragma: export

// Parameter servers: steps that are scheduled, and tables of rows that are made when they are first used.
#include "lockstep/server/coordinator.h"       // IWYU pragma: export
#include "lockstep/server/parameter_server.h"  // IWYU pragma: export

// The process and its job: who the workers are, when to stop, what is logged, and files of other programs.
#include "lockstep/checkpoint/exchange.h"        // IWYU pragma: export
#include "lockstep/cluster/cluster_spec.h"       // IWYU pragma: export
#include "lockstep/cluster/resolve_cluster.h"    // IWYU pragma: export
#include "lockstep/cluster/secret.h"             // IWYU pragma: export
#include "lockstep/core/denormals.h"             // IWYU pragma: export
#include "lockstep/core/log.h"                   // IWYU pragma: export
#include "lockstep/core/process/exit_codes.h"    // IWYU pragma: export
#include "lockstep/core/process/stop_request.h"  // IWYU pragma: export
#include "lockstep/core/sha256.h"                // IWYU pragma: export

// Looking into a run.
#include "lockstep/train/trace/trace.h"  // IWYU pragma: export

// Data: data sets, streams, files, images, text.
#include "lockstep/data.h"  // IWYU pragma: export

// Extension: what authors derive from.
#include "lockstep/extend.h"  // IWYU pragma: export
