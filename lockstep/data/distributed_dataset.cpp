#include "lockstep/data/distributed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep {

/// How a data set is dealt to the replicas, and how far it has come.
struct internal::Deal {
  struct Place {
    int64_t epoch = 0;
    int64_t position = 0;
    std::optional<int64_t> size;  // of the data set, once a batch was given
  };

  Dataset dataset;
  DistributeOptions options;
  uint64_t seed;  // that of the options, or else the strategy's
  int64_t num_replicas;
  ReplicaId first_replica;
  int64_t num_local_replicas;

  int64_t steps_of(int64_t size) const {
    return steps_of_epoch(size, options.global_batch, options.remainder == Remainder::kDrop);
  }

  mutable std::mutex mutex;
  mutable Place start = {};  // of the last seek(); guarded by mutex
  mutable Place next = {};   // behind what was given last; guarded by mutex
};

namespace data {

DistributedDataset::DistributedDataset(Dataset dataset, DistributeOptions options, uint64_t seed, int64_t num_replicas,
                                       ReplicaId first_replica, int64_t num_local_replicas) {
  dataset.size();  // throws for an empty handle
  if (options.global_batch < 1) {
    throw UsageError("LS-OPTION", fmt::format("distribute was given .global_batch = {}", options.global_batch),
                     "give the number of samples of a step over all replicas, at least 1");
  }
  deal_ = std::make_shared<const internal::Deal>(std::move(dataset), options, options.seed.value_or(seed), num_replicas,
                                                 first_replica, num_local_replicas);
}

const internal::Deal& DistributedDataset::deal() const {
  if (deal_) return *deal_;
  throw UsageError("LS-EMPTY-HANDLE", "a DistributedDataset that holds no data was used",
                   "assign one first: strategy.distribute(dataset, {.global_batch = 64})");
}

int64_t DistributedDataset::size() const { return deal().dataset.size(); }
int64_t DistributedDataset::global_batch() const { return deal().options.global_batch; }
int64_t DistributedDataset::steps_per_epoch() const { return deal().steps_of(size()); }

DistributedDataset::Epoch DistributedDataset::epoch(int64_t number) const {
  deal();
  if (number < 0) throw UsageError("LS-OPTION", fmt::format("epoch {} was asked for", number), "count epochs from 0");
  return {deal_, number};
}

Cursor DistributedDataset::cursor() const {
  const internal::Deal& deal = this->deal();
  const int64_t size = deal.dataset.size();
  const std::lock_guard<std::mutex> lock(deal.mutex);
  return {deal.next.epoch, deal.next.position, deal.next.size.value_or(size), deal.seed, deal.options.shuffle};
}

void DistributedDataset::seek(const Cursor& cursor) const {
  const internal::Deal& deal = this->deal();
  const int64_t size = deal.dataset.size();
  if (cursor.size != size) {
    throw DataError("LS-DATA-CHANGED",
                    fmt::format("the cursor is of {} samples, and the data set has {}", cursor.size, size),
                    "give the data set that the cursor came from");
  }
  if (cursor.seed != deal.seed) {
    throw UsageError("LS-STATE-MISFIT",
                     fmt::format("the cursor is of seed {}, and the data set has seed {}", cursor.seed, deal.seed),
                     "distribute the data set with the .seed that the cursor came from");
  }
  if (cursor.shuffle != deal.options.shuffle) {
    throw UsageError("LS-STATE-MISFIT",
                     fmt::format("the cursor is of a data set with .shuffle = {}, and this one has {}", cursor.shuffle,
                                 deal.options.shuffle),
                     "distribute the data set with the .shuffle that the cursor came from");
  }
  if (cursor.epoch < 0 || cursor.position < 0 || cursor.position > size) {
    throw UsageError("LS-STATE-MISFIT",
                     fmt::format("there is no epoch {}, position {} in a data set of {} samples", cursor.epoch,
                                 cursor.position, size),
                     "give what cursor() gave");
  }
  const std::lock_guard<std::mutex> lock(deal.mutex);
  deal.start = deal.next = {cursor.epoch, cursor.position, cursor.size};
}

DistributedDataset::Iterator::Iterator(std::shared_ptr<const internal::Deal> deal, int64_t epoch)
    : deal_(std::move(deal)), epoch_(epoch), size_(deal_->dataset.size()) {
  {
    const std::lock_guard<std::mutex> lock(deal_->mutex);
    const internal::Deal::Place start = deal_->start;
    if (epoch < start.epoch) first_ = size_;
    if (epoch == start.epoch) first_ = std::min(start.position, size_);
  }
  steps_ = deal_->steps_of(size_ - first_);
  order_.emplace(size_, deal_->options.shuffle, deal_->seed, epoch);
  if (steps_ > 0) current_ = read(0);
}

DistributedDataset::Iterator& DistributedDataset::Iterator::operator++() {
  if (!deal_) return *this;  // the end, or moved from
  if (step_ + 1 < steps_) current_ = read(step_ + 1);
  if (step_ < steps_) ++step_;
  return *this;
}

PerReplica<Batch> DistributedDataset::Iterator::read(int64_t step) const {
  internal::Span whole = internal::batch_span(size_ - first_, deal_->options.global_batch, step);
  whole.begin += first_;
  whole.end += first_;
  std::vector<Batch> parts;
  std::vector<int64_t> ids;
  for (int64_t r = 0; r < deal_->num_local_replicas; ++r) {
    const internal::Span part = internal::part_of(whole, deal_->first_replica + r, deal_->num_replicas);
    ids.clear();
    for (int64_t position = part.begin; position < part.end; ++position) {
      ids.push_back(
          order_->sample_at(position));  // NOLINT(bugprone-unchecked-optional-access): the constructor sets it
    }
    parts.push_back(deal_->dataset.read(ids));
    parts.back().global_size = whole.size();
  }
  const std::lock_guard<std::mutex> lock(deal_->mutex);
  deal_->next = {epoch_, whole.end, size_};
  return PerReplica<Batch>(std::move(parts), deal_->first_replica);
}

}  // namespace data
}  // namespace lockstep
