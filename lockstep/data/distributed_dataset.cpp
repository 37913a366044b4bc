#include "lockstep/data/distributed_dataset.h"

#include <fmt/format.h>

#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::data {

DistributedDataset::DistributedDataset(Dataset dataset, DistributeOptions options, uint64_t seed, int64_t num_replicas,
                                       ReplicaId first_replica, int64_t num_local_replicas)
    : dataset_(std::move(dataset)),
      options_(options),
      seed_(options.seed.value_or(seed)),
      num_replicas_(num_replicas),
      first_replica_(first_replica),
      num_local_replicas_(num_local_replicas) {
  if (options_.global_batch < 1) {
    throw UsageError(fmt::format("distribute was given .global_batch = {}", options_.global_batch),
                     "give the number of samples of a step over all replicas, at least 1");
  }
}

int64_t DistributedDataset::steps_per_epoch() const {
  return internal::steps_of_epoch(size(), options_.global_batch, options_.remainder == Remainder::kDrop);
}

DistributedDataset::Epoch::Epoch(const DistributedDataset& dataset, int64_t number)
    : owner_(std::make_shared<const DistributedDataset>(dataset)), dataset_(*owner_), number_(number) {
  if (number < 0) {
    throw UsageError(fmt::format("epoch {} was asked for", number), "count epochs from 0");
  }
}

DistributedDataset::Iterator::Iterator(const DistributedDataset* dataset, int64_t epoch, int64_t steps)
    : dataset_(dataset), steps_(steps) {
  order_.emplace(dataset->size(), dataset->options_.shuffle, dataset->seed_, epoch);
  read();
}

DistributedDataset::Iterator& DistributedDataset::Iterator::operator++() {
  ++step_;
  read();
  return *this;
}

void DistributedDataset::Iterator::read() {
  if (!order_ || step_ >= steps_) return;
  const internal::Span whole = internal::batch_span(dataset_->size(), dataset_->options_.global_batch, step_);
  std::vector<Batch> parts;
  std::vector<int64_t> ids;
  for (int64_t r = 0; r < dataset_->num_local_replicas_; ++r) {
    const internal::Span part = internal::part_of(whole, dataset_->first_replica_ + r, dataset_->num_replicas_);
    ids.clear();
    for (int64_t position = part.begin; position < part.end; ++position) ids.push_back(order_->sample_at(position));
    parts.push_back(dataset_->dataset_.read(ids));
    parts.back().global_size = whole.size();
  }
  current_ = PerReplica<Batch>(std::move(parts), dataset_->first_replica_);
}

}  // namespace lockstep::data
