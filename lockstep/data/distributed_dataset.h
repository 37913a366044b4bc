// A data set or stream dealt to the replicas, one global batch for each step.
// Walk: the training loop -> here -> strategy/run.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/per_replica.h"
#include "lockstep/data/batch.h"
#include "lockstep/data/cursor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/distribute_options.h"
#include "lockstep/data/stream.h"

namespace lockstep {

class Strategy;

namespace internal::inline replica {
class ReplicaGroup;
}  // namespace internal::replica
namespace internal::inline data {
class Deal;
class StepFeed;
}  // namespace internal::data

namespace data {

/// What this process's replicas have used of an epoch, as DistributedDataset::cursor() counts it: a proof that each
/// sample was used once.
struct LedgerEntry {
  int64_t epoch = 0;
  int64_t steps = 0;
  int64_t samples = 0;  // of this process's replicas, without padding
  uint64_t ids = 0;     // a digest of the set of ids: the sum of a digest of each
  uint64_t order = 0;   // a digest of ids, replicas and steps
  /// What the replicas of two workers have used together; `order` is that of both.
  LedgerEntry operator+(const LedgerEntry& other) const;
  /// Whether the ids are 0 to `size` - 1, each once. Ids of a stream may be other numbers, such as those of records of
  /// several files, and so may those of a part of a data set, which are its ids in the whole: for them compare
  /// `samples` and `ids` of two runs.
  bool has_each_once(int64_t size) const;
};

/// A handle; copies refer to the same data and to the same cursor. Which sample of a data set goes to which replica is
/// a pure function of (seed, epoch, position of the batch, replica): reading is repeatable, and every sample of an
/// epoch is used once (Remainder::kDrop leaves some out, and seek() those before its place). Of a stream, global batch
/// k is the k-th block of its samples, or, where replicas read files of their own, what they have read since the
/// (k-1)-th; neither depends on lanes and workers. A default-constructed one is empty: its members throw a UsageError.
///
/// With several workers, each ++ on a stream, or on a data set with OnError::kSkip, is a call in which all workers take
/// part, between runs: all make the same steps.
class DistributedDataset {
 public:
  /// Yields the steps of one epoch in order. An input iterator: one pass, on one thread. It keeps the data set alive.
  /// Where reading throws, the iterator stays at its step. A copy reads for itself.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = PerReplica<Batch>;
    using difference_type = std::ptrdiff_t;
    using pointer = const PerReplica<Batch>*;
    using reference = const PerReplica<Batch>&;

    Iterator() = default;  // the end
    reference operator*() const { return current_; }
    pointer operator->() const { return &current_; }
    Iterator& operator++();
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !deal_ || ended_; }

   private:
    friend class DistributedDataset;
    /// What a copy of the iterator does not share.
    struct Feed {
      Feed() = default;
      Feed(const Feed& /*other*/) {}
      Feed(Feed&& other) noexcept = default;
      Feed& operator=(const Feed& /*other*/) {
        steps.reset();
        return *this;
      }
      Feed& operator=(Feed&& other) noexcept = default;
      std::shared_ptr<internal::StepFeed> steps;
    };

    Iterator(std::shared_ptr<const internal::Deal> deal, int64_t epoch);

    std::shared_ptr<const internal::Deal> deal_;
    Cursor behind_;  // the place behind the present step
    Feed feed_;
    bool ended_ = false;
    PerReplica<Batch> current_;
  };

  /// The steps of one epoch, for a range-based loop.
  class Epoch {
   public:
    Iterator begin() const { return {deal_, number_}; }
    std::default_sentinel_t end() const { return {}; }

   private:
    friend class DistributedDataset;
    Epoch(std::shared_ptr<const internal::Deal> deal, int64_t number) : deal_(std::move(deal)), number_(number) {}
    std::shared_ptr<const internal::Deal> deal_;
    int64_t number_;
  };

  DistributedDataset() = default;
  /// In a scheduled step (WorkerContext): this step's batch. The n-th scheduled step has the n-th one, or, where
  /// workers go in step, its part of the round's; on whichever worker it runs, and each time that it is given to one.
  /// After the last batch of an epoch the next epoch begins.
  template <class Context>
  requires requires(Context& context, const DistributedDataset& data) { context.batch_of(data); }
  Batch next(Context& context) const { return context.batch_of(*this); }
  /// The steps of epoch `number`, counted from 0: those after the place of the last seek(). Throws a UsageError for a
  /// negative number.
  Epoch epoch(int64_t number) const;
  /// The place behind the batch that was used last. A batch is used when a run that was given it, or a copy of it, has
  /// completed, when used() was called, or when the loop went on and nobody holds it any more. So before run(), and
  /// where it has thrown, the batch that a loop holds is not used, nor is what was evaluated or read ahead. Where
  /// batches go by without a run, or the strategy has no optimizer, the library cannot know: the batch that the loop
  /// holds counts as used, and a finding says so. All iterators move this one cursor. Call from any thread.
  Cursor cursor() const;
  /// Says that all batches that iterators have given were used: for loops that use batches without run(), or in which a
  /// step captures them. From then on a batch that the loop holds is not used until it is called again. Any thread.
  void used() const;
  /// Continues at `cursor`: from now on its epoch begins there, earlier epochs have no steps, and later ones are whole.
  /// Iterators that exist go on as before. A UsageError for negative numbers, another seed or another `.shuffle`, a
  /// DataError for another size or other data; then nothing has changed. Call from any thread.
  void seek(const Cursor& cursor) const;
  /// Steps of a whole epoch, whatever seek() was given; 0 where there are no samples. A UsageError for a stream, whose
  /// length is not known.
  int64_t steps_per_epoch() const;
  /// Samples in the data set. A UsageError for a stream.
  int64_t size() const;
  int64_t global_batch() const;
  /// Samples that were left out because they could not be read (OnError::kSkip), on all workers.
  int64_t skipped() const;
  /// What this process's replicas have used, for each of the last 64 epochs that had steps.
  std::vector<LedgerEntry> ledger() const;
  /// The pipeline, how it is dealt and read ahead, and what that takes of memory, for a reader.
  std::string describe() const;

  /// For the library's own use.
  explicit DistributedDataset(std::shared_ptr<const internal::Deal> deal) : deal_(std::move(deal)) {}
  const void* identity() const { return deal_.get(); }

 private:
  friend class lockstep::Strategy;
  const internal::Deal& deal() const;

  std::shared_ptr<const internal::Deal> deal_;
};

}  // namespace data

namespace internal::inline data {
/// How Strategy::distribute() deals a data set, or a stream; `own`: of which each worker has one of its own.
std::shared_ptr<const Deal> deal_of(const lockstep::data::Dataset& dataset, DistributeOptions options,
                                    std::shared_ptr<ReplicaGroup> group);
std::shared_ptr<const Deal> deal_of(const lockstep::data::Stream& stream, DistributeOptions options,
                                    std::shared_ptr<ReplicaGroup> group, bool own);

inline lockstep::data::Stream as_stream(const lockstep::data::Stream& stream) { return stream; }
inline lockstep::data::Stream as_stream(const lockstep::data::Dataset& dataset) {
  return lockstep::data::from_dataset(dataset);
}
}  // namespace internal::data

using data::DistributedDataset;

}  // namespace lockstep
