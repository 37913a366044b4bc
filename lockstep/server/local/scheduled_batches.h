// The batches of data sets that scheduled steps take by their numbers.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "lockstep/data/distributed_dataset.h"

namespace lockstep::internal::inline server {

/// Reads each data set in order, from its cursor on, and keeps what was read until no step can ask for it again. Any
/// thread.
class ScheduledBatches {
 public:
  /// The batch at a data set's cursor is that with the index `first`.
  explicit ScheduledBatches(int64_t first) : first_(first) {}

  /// Replica `replica`'s part of batch `index`. A DataError (LS-NO-SAMPLES) for a data set without samples.
  Batch batch(const DistributedDataset& data, int64_t index, int64_t replica);
  /// No step asks for a batch below `index` any more: these were used.
  void forget_below(int64_t index);

 private:
  struct Reading {
    DistributedDataset data;
    int64_t epoch = 0;
    std::optional<DistributedDataset::Iterator> at = std::nullopt;  // the batch that was read last
    int64_t next = 0;                                               // the index of the batch that is read next
    std::map<int64_t, PerReplica<Batch>> kept = {};
  };
  void read(Reading& reading) const;

  const int64_t first_;
  std::mutex mutex_;
  int64_t lowest_ = 0;                       // batches below it were used; guarded by mutex_
  std::map<const void*, Reading> readings_;  // by data set; guarded by mutex_
};

}  // namespace lockstep::internal::server
