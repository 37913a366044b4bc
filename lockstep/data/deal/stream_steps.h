// The steps of a stream, read by one reader for all replicas, or by one for each replica or worker.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/deal/collated_part.h"
#include "lockstep/data/deal/deal.h"
#include "lockstep/data/stream.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline data {

/// Who reads what. The numbers stand in cursors.
enum class Reading : int64_t {
  kWhole = 0,      // every worker reads the whole stream, and takes its replicas' parts of each global batch
  kByReplica = 1,  // each replica reads files of its own
  kByWorker = 2,   // each worker reads a stream of its own, for its replicas
};

/// How many readers a run has.
int64_t num_readers(Reading reading, const ReplicaGroup& group);

/// The readers' positions as numbers of a cursor, and back. Throws a UsageError where the numbers are of another way to
/// read.
lockstep::data::StreamPosition joined_positions(Reading reading,
                                                const std::vector<lockstep::data::StreamPosition>& positions);
std::vector<lockstep::data::StreamPosition> positions_in(const lockstep::data::StreamPosition& numbers, Reading reading,
                                                         int64_t readers, const std::string& who);

/// Reads this process's part of the steps from a place on. With `watched` the first step has digests of its parts.
std::unique_ptr<EpochReader> stream_steps(const lockstep::data::Stream& stream, const DistributeOptions& options,
                                          Reading reading, const ReplicaGroup& group, const lockstep::data::Cursor& at,
                                          bool watched, PartMaker maker);

}  // namespace lockstep::internal::data
