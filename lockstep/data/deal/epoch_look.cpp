#include "lockstep/data/deal/epoch_look.h"

#include <optional>
#include <utility>

#include "lockstep/data/deal/deal.h"
#include "lockstep/data/deal/step_feed.h"

namespace lockstep::internal::inline data {

EpochLook::EpochLook(const lockstep::data::DistributedDataset& data, int64_t epoch)
    : data_(data), behind_(deal_behind(data).begin_of(epoch)) {}

const PerReplica<Batch>* EpochLook::next() {
  if (ended_) return nullptr;
  const Deal& deal = deal_behind(data_);
  try {
    if (!feed_ || feed_->is_lost()) feed_ = deal.feed(behind_, Deal::For::kLook);
    std::optional<PerReplica<Batch>> step = deal.next(*feed_, behind_, Deal::For::kLook);
    if (step) {
      current_ = std::move(*step);
      return &current_;
    }
  } catch (...) {
    feed_.reset();  // it is of no use after an error
    throw;
  }
  ended_ = true;
  feed_.reset();
  return nullptr;
}

}  // namespace lockstep::internal::data
