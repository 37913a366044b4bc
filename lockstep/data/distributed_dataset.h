// A data set dealt to the replicas, one global batch for each step.
// Walk: the training loop -> here -> strategy/run.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/core/ids.h"
#include "lockstep/core/per_replica.h"
#include "lockstep/data/batch.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/plan.h"

namespace lockstep {

class Strategy;

/// What happens to the samples of an epoch that do not fill a global batch.
enum class Remainder {
  kKeep,  // they form a last, short batch; replicas' parts differ by at most one sample, and may be empty
  kDrop,  // they are left out of this epoch; with `shuffle` each epoch leaves out others
};

struct DistributeOptions {
  int64_t global_batch = 0;  // samples of a step over all replicas; at least 1, may be fewer than replicas
  bool shuffle = false;      // a new order for each epoch, a function of (seed, epoch)
  std::optional<uint64_t> seed = std::nullopt;  // the strategy's, where none is given
  Remainder remainder = Remainder::kKeep;
  /// Where it is given, the cursor is one of Strategy::state_items() under this name. Names of a strategy's living data
  /// sets differ.
  std::string name = {};
};

namespace internal {
struct Deal;
}

namespace data {

/// A place in the epochs of a distributed data set. It is a few numbers, so that a program can save it in any format,
/// and it holds for any number of replicas, lanes and workers, and for any global batch.
struct Cursor {
  int64_t epoch = 0;
  int64_t position = 0;  // samples of this epoch that come before the place
  int64_t size = 0;      // samples in the data set, when the epoch began
  uint64_t seed = 0;     // of the order of samples
  bool shuffle = false;  // whether that order is DistributeOptions::shuffle's
  friend bool operator==(const Cursor&, const Cursor&) = default;
};

/// A handle; copies refer to the same data and to the same cursor. Which sample goes to which replica is a pure
/// function of (seed, epoch, position of the batch, replica): reading is repeatable, and every sample of an epoch is
/// used once (Remainder::kDrop leaves some out, and seek() those before its place). A default-constructed one is empty:
/// its members throw a UsageError.
class DistributedDataset {
 public:
  /// Yields the steps of one epoch in order. An input iterator: one pass, on one thread. It keeps the data set alive.
  /// Where reading throws, the iterator stays at its step.
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
    bool operator==(std::default_sentinel_t) const { return !deal_ || step_ >= steps_; }

   private:
    friend class DistributedDataset;
    Iterator(std::shared_ptr<const internal::Deal> deal, int64_t epoch);
    PerReplica<Batch> read(int64_t step) const;

    std::shared_ptr<const internal::Deal> deal_;
    std::optional<internal::EpochOrder> order_;
    int64_t epoch_ = 0;
    int64_t size_ = 0;
    int64_t first_ = 0;  // the position of the first sample that it gives
    int64_t step_ = 0;
    int64_t steps_ = 0;
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
  /// The steps of epoch `number`, counted from 0: those after the place of the last seek(). Throws a UsageError for a
  /// negative number.
  Epoch epoch(int64_t number) const;
  /// The place behind the batch that an iterator gave last, so the batch that a loop holds counts as used. All
  /// iterators move this one cursor. Call from any thread.
  Cursor cursor() const;
  /// Continues at `cursor`: from now on its epoch begins there, earlier epochs have no steps, and later ones are whole.
  /// Iterators that exist go on as before. A UsageError for negative numbers, another seed or another `.shuffle`, a
  /// DataError for another size; then nothing has changed. Call from any thread.
  void seek(const Cursor& cursor) const;
  /// Steps of a whole epoch, whatever seek() was given; 0 where there are no samples.
  int64_t steps_per_epoch() const;
  /// Samples in the data set.
  int64_t size() const;
  int64_t global_batch() const;

  /// For the library's own use: `seed` is the strategy's.
  DistributedDataset(Dataset dataset, DistributeOptions options, uint64_t seed, int64_t num_replicas,
                     ReplicaId first_replica, int64_t num_local_replicas);

 private:
  friend class lockstep::Strategy;
  explicit DistributedDataset(std::shared_ptr<const internal::Deal> deal) : deal_(std::move(deal)) {}
  const internal::Deal& deal() const;

  std::shared_ptr<const internal::Deal> deal_;
};

}  // namespace data

using data::DistributedDataset;

}  // namespace lockstep
