// Which of the batches that data sets have given were used by runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::internal::inline replica {

/// What became of one global batch. Any thread.
struct BatchUse {
  std::atomic<bool> given{false};      // a run began with it
  std::atomic<bool> used{false};       // such a run has completed, or the program said so
  std::atomic<bool> evaluated{false};  // an evaluation of it has completed
};

/// What a part of a batch is known by: the memory of its ids, which copies of the part share.
using BatchKey = const void*;

class BatchUses;

/// Lives as long as a run. Where that ends without an exception, the batches that it was given are used.
class RunBatches {
 public:
  RunBatches(BatchUses& all, const std::vector<BatchKey>& keys, bool evaluates);
  ~RunBatches();
  RunBatches(const RunBatches&) = delete;
  RunBatches& operator=(const RunBatches&) = delete;

 private:
  BatchUses& all_;
  std::vector<std::shared_ptr<BatchUse>> given_;
  const bool evaluates_;
  const int exceptions_;
};

/// The batches of one strategy whose use is open. Any thread.
class BatchUses {
 public:
  /// The batch with these parts. The memory behind the keys stays until forget().
  std::shared_ptr<BatchUse> watch(const std::vector<BatchKey>& keys);
  void forget(const std::vector<BatchKey>& keys);
  /// Completed runs that were given no batch of a data set.
  int64_t runs_without() const { return runs_without_; }
  /// Whether the strategy has made an optimizer, so that it can train by run().
  bool has_optimizer() const { return has_optimizer_; }
  void note_optimizer() { has_optimizer_ = true; }

 private:
  friend class RunBatches;
  std::mutex mutex_;
  std::unordered_map<BatchKey, std::shared_ptr<BatchUse>> open_;  // guarded by mutex_
  std::atomic<int64_t> runs_without_{0};
  std::atomic<bool> has_optimizer_{false};
};

}  // namespace lockstep::internal::replica
