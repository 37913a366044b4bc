// What a buffer of a module becomes where each replica's forward pass has moved its own.
#pragma once

#include <string_view>

namespace lockstep {

/// A forward pass may move a buffer: running statistics, a codebook, a count. On several replicas each moves its own,
/// by its part of the batch, and they drift apart. This says what becomes of them, for all buffers of a module.
/// Whatever is chosen, evaluate() has the values that Replicated::state and export_module() give. docs/variables.md has
/// a table.
enum class Buffers {
  kAuto,          // kMean, and a finding (LS-BUFFERS-DIFFER), once, where runs have moved them apart
  kMean,          // each replica trains with its own, and a read gives their mean; of integers and bool, replica 0's
  kFirstReplica,  // after each run all replicas have replica 0's, as with DDP
  kSum,           // after each run all have what it was and what each replica has added to it: for counts and sums;
                  // buffers of batch and instance normalisation are averages, and kept as with kAuto
  kEqual,         // replicas move them equally, as SyncBatchNorm does: otherwise the run is a DivergenceError
};

namespace internal::inline variable {

/// "kMean"
std::string_view name_of(Buffers buffers);

/// Whether all replicas have one value after each run.
constexpr bool are_settled(Buffers buffers) { return buffers != Buffers::kAuto && buffers != Buffers::kMean; }

}  // namespace internal::variable
}  // namespace lockstep
