// Reads a checkpoint on all workers: each reads what it needs, where all of them see the folder. Otherwise the chief
// reads, and sends everything to the others.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline checkpoint {

/// A checkpoint as a worker has read it, and what messages call it. Of values that each replica has, those of other
/// workers' replicas are undefined, unless they are needed because the checkpoint is of another number of replicas.
struct NamedImage {
  Image image;
  std::string what;  // "the checkpoint 'runs/a/step-0000000012'"
};

/// What has become of a list of folders by now, newest first.
using ListFolders = std::function<std::vector<std::filesystem::path>()>;

/// The first of `folders` that is whole; the chief's log then says why the first one before it is not. All workers call
/// it, and the chief's `folders` counts, as does its `list_again`, if it is given: where none of them is whole, the
/// folders that it gives and that were not tried follow. Where none is whole, the error is that of the first one: a
/// DataError on the worker that found it, and a PeerError that quotes it on the others. A UsageError (LS-WORKER-ORDER)
/// where workers give different options.
/// Where each worker reads what it needs, it reads the bytes of a tensor that are `needed` alone.
NamedImage read_first_whole(const Strategy& strategy, Files& files, const std::vector<std::filesystem::path>& folders,
                            const RestoreOptions& options, const NeededBytes& needed,
                            const ListFolders& list_again = {});

}  // namespace lockstep::internal::checkpoint
