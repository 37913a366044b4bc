#include "lockstep/data/distributed_dataset.h"

#include <ATen/core/TensorBody.h>
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/deal.h"
#include "lockstep/data/deal/step_feed.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::data {

const internal::Deal& DistributedDataset::deal() const {
  if (deal_) return *deal_;
  throw UsageError("LS-EMPTY-HANDLE", "a DistributedDataset that holds no data was used",
                   "assign one first: strategy.distribute(dataset, {.global_batch = 64})");
}

int64_t DistributedDataset::size() const { return deal().size(); }
int64_t DistributedDataset::global_batch() const { return deal().options().global_batch; }
int64_t DistributedDataset::steps_per_epoch() const { return deal().steps_per_epoch(); }
Cursor DistributedDataset::cursor() const { return deal().cursor(); }
void DistributedDataset::used() const { deal().use_all(); }
void DistributedDataset::seek(const Cursor& cursor) const { deal().seek(cursor); }
int64_t DistributedDataset::skipped() const { return deal().skipped(); }
std::vector<LedgerEntry> DistributedDataset::ledger() const { return deal().ledger(); }

std::string DistributedDataset::describe() const {
  const internal::Deal& deal = this->deal();
  const DistributeOptions& options = deal.options();
  const int64_t ahead = deal.depth();
  const internal::ReplicaGroup& group = deal.group();
  const int64_t kept = deal.elements_in_memory();
  return fmt::format(
      "{}; {} a step for {}, {} of them here; {}{}{}\n", deal.describe(),
      internal::counted(options.global_batch, "sample"), internal::counted(group.num_replicas(), "replica"),
      group.num_local_replicas(),
      ahead == 0
          ? std::string("read when it is asked for")
          : fmt::format("up to {} can be read ahead on {}, so memory has at most {} of "
                        "these replicas' samples",
                        internal::counted(ahead, "step"), internal::counted(deal.num_reading_threads(), "thread"),
                        internal::counted(ahead + 1, "step")),
      kept == 0 ? "" : fmt::format(", and its stages keep up to {} in memory", internal::counted(kept, "element")),
      options.pin_memory ? "; batches are in pinned memory" : "");
}

DistributedDataset::Epoch DistributedDataset::epoch(int64_t number) const {
  deal();
  if (number < 0) throw UsageError("LS-OPTION", fmt::format("epoch {} was asked for", number), "count epochs from 0");
  return {deal_, number};
}

DistributedDataset::Iterator::Iterator(std::shared_ptr<const internal::Deal> deal, int64_t epoch)
    : deal_(std::move(deal)) {
  std::optional<Cursor> start = deal_->start_of(epoch);
  if (start) {
    behind_ = std::move(*start);
    ++*this;
  } else {
    ended_ = true;
  }
}

DistributedDataset::Iterator& DistributedDataset::Iterator::operator++() {
  if (!deal_ || ended_) return *this;  // the end, or moved from
  deal_->pass(current_);
  try {
    if (!feed_.steps || feed_.steps->is_lost()) feed_.steps = deal_->feed(behind_);
    std::optional<PerReplica<Batch>> step = deal_->next(*feed_.steps, behind_);
    if (step) {
      current_ = std::move(*step);
      return *this;
    }
  } catch (...) {
    feed_.steps.reset();  // the step is read again when it is asked for again
    throw;
  }
  ended_ = true;
  feed_.steps.reset();
  return *this;
}

}  // namespace lockstep::data
