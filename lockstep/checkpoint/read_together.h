// Reads a checkpoint on all workers: each reads what it needs, where all of them see the folder. Otherwise the chief
// reads, and sends everything to the others.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal {

/// A checkpoint as a worker has read it. Of values that each replica has, those of other workers' replicas are
/// undefined, unless they are needed because the checkpoint is of another number of replicas.
struct CheckpointRead {
  Image image;
  std::string what;  // "the checkpoint 'runs/a/step-0000000012'"
};

/// The first of `folders` that is whole; the chief's log has a warning that names those that are not. All workers call
/// it with the same options, otherwise with a UsageError (LS-WORKER-ORDER), and the chief's `folders` counts. Where none is whole, who has found the damage throws the DataError of the
/// first one, and the others a PeerError that quotes it.
CheckpointRead read_first_whole(const Strategy& strategy, Files& files,
                                const std::vector<std::filesystem::path>& folders, const RestoreOptions& options);

}  // namespace lockstep::internal
