#include "lockstep/data/deal/handed_out.h"

#include <algorithm>
#include <utility>

namespace lockstep::internal::inline data {

namespace {

constexpr std::size_t kLedgerEpochs = 64;

}  // namespace

BatchKey key_of(const Batch& part) {
  return part.ids.defined() && part.ids.has_storage() ? part.ids.storage().unsafeGetStorageImpl() : nullptr;
}

HandedOut::~HandedOut() { close(open_.size()); }

bool HandedOut::Step::is_held() const {
  return std::any_of(ids.begin(), ids.end(),
                     [](const at::Tensor& one) { return one.use_count() > 1 || one.storage().use_count() > 1; });
}

void HandedOut::close(std::size_t count) {
  for (; count > 0; --count) {
    uses_.forget(open_.front().keys);
    open_.pop_front();
  }
}

void HandedOut::add(const lockstep::data::LedgerEntry& entry) {
  lockstep::data::LedgerEntry& sum = ledger_[entry.epoch];
  sum.epoch = entry.epoch;
  sum = sum + entry;
  if (ledger_.size() > kLedgerEpochs) ledger_.erase(ledger_.begin());
}

void HandedOut::give(const PerReplica<Batch>& step, const lockstep::data::Cursor& before,
                     const lockstep::data::Cursor& behind, const lockstep::data::LedgerEntry& entry) {
  Step given{before, behind, entry, {}, {}, nullptr, uses_.runs_without()};
  for (const Batch& part : step) {
    given.ids.push_back(part.ids);
    given.keys.push_back(key_of(part));
  }
  given.use = uses_.watch(given.keys);
  open_.push_back(std::move(given));
}

HandedOut::Doubt HandedOut::pass(const PerReplica<Batch>& step) {
  if (step.begin() == step.end()) return Doubt::kNone;
  const BatchKey key = key_of(*step.begin());
  for (Step& one : open_) one.passed = one.passed || one.keys.front() == key;
  return settle();
}

/// Steps up to the last one that is over are closed.
HandedOut::Doubt HandedOut::settle() {
  tells_ = tells_ || std::any_of(open_.begin(), open_.end(), [](const Step& one) { return one.use->given.load(); });
  const auto is_over = [&](const Step& one) { return one.use->used || (one.passed && (!tells_ || !one.is_held())); };
  const auto last = std::find_if(open_.rbegin(), open_.rend(), is_over);
  const auto count = static_cast<std::size_t>(open_.rend() - last);
  Doubt doubt = Doubt::kNone;
  for (std::size_t i = 0; i < count; ++i) {
    const Step& one = open_[i];
    if (one.use->used || !tells_) add(one.entry);
    if (one.use->used || one.use->given) continue;
    went_by_ = true;
    if (one.asked) doubt = Doubt::kWentBy;
  }
  if (count > 0) place_ = open_[count - 1].behind;
  close(count);
  return doubt;
}

bool HandedOut::is_probably_used() const {
  return !tells_ && !open_.empty() &&
         (went_by_ || uses_.runs_without() > open_.back().runs_without || !uses_.has_optimizer());
}

HandedOut::Place HandedOut::place() {
  const Doubt doubt = settle();
  if (open_.empty()) return {place_, doubt};
  if (is_probably_used()) return {open_.back().behind, open_.back().use->evaluated ? doubt : Doubt::kHeld};
  for (Step& one : open_) one.asked = true;
  return {open_.front().before, doubt};
}

void HandedOut::use_all() {
  tells_ = true;
  for (Step& one : open_) one.use->used = true;
  settle();
}

void HandedOut::seek(const lockstep::data::Cursor& cursor) {
  settle();  // what was used before does not move the place afterwards
  // Where it goes on at the step that the loop holds, that may still be used.
  if (!open_.empty() && cursor == open_.front().before) {
    for (Step& one : open_) one.asked = false;
  } else {
    close(open_.size());
  }
  place_ = cursor;
}

std::vector<lockstep::data::LedgerEntry> HandedOut::ledger() {
  settle();
  std::map<int64_t, lockstep::data::LedgerEntry> sums = ledger_;
  if (is_probably_used()) {
    for (const Step& one : open_) {
      lockstep::data::LedgerEntry& sum = sums[one.entry.epoch];
      sum.epoch = one.entry.epoch;
      sum = sum + one.entry;
    }
  }
  std::vector<lockstep::data::LedgerEntry> all;
  for (const auto& [epoch, entry] : sums) all.push_back(entry);
  return all;
}

}  // namespace lockstep::internal::data
