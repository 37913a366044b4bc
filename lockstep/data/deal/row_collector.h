// Rows that several threads make one by one, put together as they come: each is copied to its place at once, so that
// the memory of a row is free, and warm, for the next one.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "lockstep/data/batch.h"
#include "lockstep/data/deal/batch_rows.h"

namespace lockstep::internal::inline data {

/// Any number of threads may put rows, each place once.
class RowCollector {
 public:
  /// For `count` rows, at least 1.
  explicit RowCollector(int64_t count) : count_(count) {}

  /// Row `place` is the only row of `row`.
  void put(int64_t place, Batch row);
  /// All rows, without ids, when each was put. Throws as joined_rows() does, whatever order they came in.
  Batch take(const std::string& who, const SampleNames& names);

 private:
  bool copy(int64_t place, const Batch& row) const;

  const int64_t count_;
  std::mutex mutex_;
  bool begun_ = false;               // guarded by mutex_
  Batch all_;                        // has the first row's dtypes and shapes; set by who sets begun_
  std::map<int64_t, Batch> others_;  // rows that do not fit into all_ byte by byte; guarded by mutex_
};

}  // namespace lockstep::internal::data
