// A look at an epoch of a distributed data set, as evaluations take it: it leaves no trace in the data set.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/core/per_replica.h"
#include "lockstep/data/batch.h"
#include "lockstep/data/cursor.h"
#include "lockstep/data/distributed_dataset.h"

namespace lockstep::internal::inline data {

class StepFeed;

/// Gives the steps of a whole epoch in order, whatever seek() was given. Cursor, ledger and iterators stay as they
/// are, and Remainder::kDrop leaves nothing out: the last step may be smaller. One thread. Where workers agree on the
/// steps of an iterator, next() is a call of all workers.
class EpochLook {
 public:
  /// A UsageError for an empty handle.
  EpochLook(const lockstep::data::DistributedDataset& data, int64_t epoch);
  /// The next step, which lives until the next call; null at the end and behind it. Where reading throws, the next call
  /// reads the same step.
  const PerReplica<Batch>* next();

 private:
  const lockstep::data::DistributedDataset data_;
  lockstep::data::Cursor behind_;  // the place behind the present step
  std::shared_ptr<StepFeed> feed_;
  PerReplica<Batch> current_;
  bool ended_ = false;
};

}  // namespace lockstep::internal::data
