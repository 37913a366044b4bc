// How a data set or stream is dealt to the replicas.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/core/ids.h"
#include "lockstep/data/deal/collate.h"

namespace lockstep {

/// What happens to the samples of an epoch that do not fill a global batch.
enum class Remainder {
  kKeep,  // they form a last, short batch; replicas' parts differ by at most one sample, and may be empty
  /// They are left out of this epoch; with `shuffle` each epoch leaves out others. Where not every worker
  /// reads the whole stream, each replica leaves out its own last part that is not full, and the others go on.
  kDrop,
  kPad,  // they form a last batch that is filled up with rows of weight 0: see Batch::padding
};

/// Who reads which samples. A Dataset needs none of it: with every policy but kOff each replica reads its own samples.
enum class Sharding {
  kAuto,  // kFile where there are several replicas, and as many files, and samples in a global batch; else kData
  kFile,  // replica r reads every V-th file from file r on; where there are fewer files, kData, and the log says so
  kData,  // every worker reads the whole stream; replica r gets the r-th part of each global batch
  /// Every worker reads the whole input, and deals it to its own replicas: samples are used once for each worker. With
  /// several workers a Dataset is then dealt as a stream: size() and steps_per_epoch() throw a UsageError.
  kOff,
};

/// What happens where a sample cannot be read: a record that is damaged, a map() that throws.
enum class OnError {
  kThrow,  // a DataError that names the sample reaches the caller of the iterator
  /// The sample is left out, counted in DistributedDataset::skipped(), and logged. A lack of memory or of file
  /// descriptors is not about a sample: it is thrown as with kThrow, and the next ++ of the iterator reads again.
  kSkip,
};

struct DistributeOptions {
  /// Samples of a step over all replicas: at least 1; may be fewer than replicas. For distribute_from_function() 0,
  /// which gives each replica one element of the stream, or at least the number of replicas.
  int64_t global_batch = 0;
  /// A new order for each epoch, a function of (seed, epoch). A stream's files are read in another order, and its
  /// samples are shuffled in windows of 1,024 (Stream::shuffle).
  bool shuffle = false;
  std::optional<uint64_t> seed = std::nullopt;  // the strategy's, where none is given
  Remainder remainder = Remainder::kKeep;
  Sharding sharding = Sharding::kAuto;
  /// Where it is given, the cursor is one of Strategy::state_items() under this name. Two living data sets of a
  /// strategy have different names: otherwise the second is a UsageError.
  std::string name = {};
  OnError on_error = OnError::kThrow;
  /// How many steps iterators read ahead on threads of their own; 0: they read when they are asked. Where none is
  /// given, what prefetch() in the pipeline says. Nothing but speed and memory depends on it: that many global batches,
  /// as far as they are this process's.
  std::optional<int64_t> prefetch = std::nullopt;
  /// Threads that read ahead, where `prefetch` is above 0; a stream, and a data set with OnError::kSkip, has one. 0:
  /// one for each core of the process that no lane uses, and at least one. Several call the functions of the pipeline
  /// side by side.
  int64_t threads = 1;
  /// Batches lie in pinned host memory. A GPU copies from it fastest, and with `.to(device, /*non_blocking=*/true)`
  /// while the program goes on. The thread that reads a step copies it there, so reading ahead hides that. LibTorch's
  /// allocator keeps the memory and uses it again. A UsageError where LibTorch sees no CUDA GPU: there is none, or
  /// libtorch_cuda is not linked. Tensors that are not dense, or need a gradient, stay where they are.
  bool pin_memory = false;
  /// How long the other workers wait for this one while it waits for its next batch, or makes its data set; 0:
  /// WorkerTimeouts::work.
  std::chrono::milliseconds limit = {};
  /// Makes a replica's part of its samples, which then need not be alike: samples of different lengths, or structs of
  /// the program's own. It is called with the samples of one replica, in their order, and gives a Batch with an input;
  /// the other members may stay empty. What its tensors look like is its own business: the part's size is the number of
  /// samples. `ids` are those of the samples, or, where it sets them, the same in another order. Random operators draw
  /// from a stream of the part, a function of (seed, epoch, samples).
  ///
  ///     [](std::vector<lockstep::Batch> samples) -> lockstep::Batch            // each of one row, [1, ...]
  ///     [](const std::vector<Example>& samples) -> lockstep::Batch             // of a torch::data data set
  ///
  /// It is never called with no samples. A part without samples has the dtypes and shapes that it would give for none:
  /// that is found by what it makes of one sample, and of the same one twice.
  ///
  /// It is called by the threads that read ahead, several side by side where `threads` says so. What it throws reaches
  /// the caller nested in a DataError (LS-COLLATE) that names samples, replica and worker, also with OnError::kSkip.
  /// Remainder::kPad is a UsageError with it.
  Collate collate = {};
};

/// What distribute_from_function() tells its function: which worker it is called on.
struct InputContext {
  int64_t num_input_pipelines = 1;   // workers
  int64_t input_pipeline_id = 0;     // this worker
  int64_t num_replicas_in_sync = 1;  // replicas of all workers
  int64_t num_local_replicas = 1;    // replicas of this worker
  ReplicaId first_replica = 0;       // the first of them

  /// The global batch divided by the number of replicas. Throws a UsageError where that is no whole number.
  int64_t get_per_replica_batch_size(int64_t global_batch) const;
};

}  // namespace lockstep
