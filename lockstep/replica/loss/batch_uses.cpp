#include "lockstep/replica/loss/batch_uses.h"

#include <exception>

namespace lockstep::internal::inline replica {

RunBatches::RunBatches(BatchUses& all, const std::vector<BatchKey>& keys, bool evaluates)
    : all_(all), evaluates_(evaluates), exceptions_(std::uncaught_exceptions()) {
  if (keys.empty()) return;
  const std::lock_guard<std::mutex> lock(all_.mutex_);
  for (const BatchKey key : keys) {
    const auto found = all_.open_.find(key);
    if (found == all_.open_.end()) continue;
    if (!evaluates_) found->second->given = true;
    given_.push_back(found->second);
  }
}

RunBatches::~RunBatches() {
  if (std::uncaught_exceptions() > exceptions_) return;
  for (const auto& use : given_) (evaluates_ ? use->evaluated : use->used) = true;
  if (!evaluates_ && given_.empty()) ++all_.runs_without_;
}

std::shared_ptr<BatchUse> BatchUses::watch(const std::vector<BatchKey>& keys) {
  auto use = std::make_shared<BatchUse>();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const BatchKey key : keys) open_[key] = use;
  return use;
}

void BatchUses::forget(const std::vector<BatchKey>& keys) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const BatchKey key : keys) open_.erase(key);
}

}  // namespace lockstep::internal::replica
