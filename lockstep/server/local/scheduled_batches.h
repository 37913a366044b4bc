// The batches of data sets that scheduled steps take by their numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/data/distributed_dataset.h"

namespace lockstep::internal::inline server {

/// A data set that scheduled steps take batches of, and its place.
struct UsedData {
  std::optional<DistributedDataset> data = std::nullopt;  // nothing where no step has asked for it since a restore
  lockstep::data::Cursor place = {};
  /// Whether a cursor is of the same data in the same order. Two data sets that are alike are told apart by the order
  /// in which steps first ask for them.
  bool is_alike(const lockstep::data::Cursor& other) const;
};

/// Reads each data set in order, from its cursor on, and keeps what was read until no step can ask for it again. Any
/// thread.
class ScheduledBatches {
 public:
  /// The batch at a data set's cursor is that with the index `first`. A data set that is still at its beginning goes on
  /// at its place in `restored`. Where that has no place for it and batches go `by_number`, its begin is batch 0.
  explicit ScheduledBatches(int64_t first, const std::vector<UsedData>& restored = {}, bool by_number = false);
  /// The index of the batch at each data set's cursor is in `indexes`, which outlives this and is kept up to date; a
  /// data set that is not there has the index 0 at its begin.
  ScheduledBatches(int64_t first, std::map<const void*, int64_t>& indexes) : first_(first), indexes_(&indexes) {}

  /// Replica `replica`'s part of batch `index`. A DataError (LS-NO-SAMPLES) for a data set without samples.
  Batch batch(const DistributedDataset& data, int64_t index, int64_t replica);
  /// No step asks for a batch below `index` any more: these were used.
  void forget_below(int64_t index);
  /// Until release(), places from `index` on are kept, whatever was used meanwhile.
  void keep_from(int64_t index);
  void release();
  /// The place of the batch `index`, which was kept or not read yet; nothing for a data set of which no step has asked
  /// for a batch.
  std::optional<lockstep::data::Cursor> place_of(const DistributedDataset& data, int64_t index);
  /// The places of the batch `index` in all data sets that steps have asked for, and what was restored and not asked
  /// for.
  std::vector<UsedData> places(int64_t index);
  /// The same data sets, whose places are where they are.
  std::vector<UsedData> used() const;

 private:
  struct Reading {
    DistributedDataset data;
    std::size_t number = 0;  // in the order in which they were asked for
    int64_t epoch = 0;
    std::optional<DistributedDataset::Iterator> at = std::nullopt;  // the batch that was read last
    int64_t next = 0;                                               // the index of the batch that is read next
    std::map<int64_t, PerReplica<Batch>> kept = {};
    std::map<int64_t, lockstep::data::Cursor> places = {};  // of the batches that are kept, and of the next one
  };
  void read(Reading& reading) const;
  /// Where the cursor is behind `first_`, the data set goes back to its begin.
  int64_t index_at(const DistributedDataset& data) const;
  lockstep::data::Cursor place_in(Reading& reading, int64_t index);
  Reading& reading_of(const DistributedDataset& data);
  /// All but `readings_`, behind those.
  void add_others(std::vector<UsedData>& all) const;

  const int64_t first_;
  std::map<const void*, int64_t>* const indexes_ = nullptr;
  const bool by_number_ = false;
  mutable std::mutex mutex_;
  int64_t lowest_ = 0;                               // batches below it were used; guarded by mutex_
  std::optional<int64_t> keep_from_ = std::nullopt;  // guarded by mutex_
  std::map<const void*, Reading> readings_;          // by data set; guarded by mutex_
  std::vector<UsedData> earlier_;  // that steps of earlier runs have asked for, and none of this; the same
  std::vector<lockstep::data::Cursor> waiting_;  // restored, of data sets that nobody asked for; the same
};

}  // namespace lockstep::internal::server
