#include "lockstep/checkpoint/background_save.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "lockstep/checkpoint/together.h"
#include "lockstep/comm/service_thread.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep::internal {

namespace {

/// Whether an error only says that another worker has failed.
bool follows_another(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& one) {
    return one.code() == kShareCode;
  } catch (...) {
    return false;
  }
  return false;
}

}  // namespace

BackgroundSave::~BackgroundSave() {
  if (is_in_child()) return;  // with the thread and its error, which are the parent's
  // Where the run ends by an error, other workers may not write any more; otherwise a disk may need minutes.
  constexpr std::chrono::minutes kPatience(10);
  deadline_->set_in(std::uncaught_exceptions() > 0 ? std::chrono::milliseconds(0) : kPatience);
  join();
  if (error_) log(LogLevel::kError, fmt::format("a checkpoint was not saved: {}", message_of(error_)));
}

std::shared_ptr<const Deadline> BackgroundSave::new_deadline() {
  deadline_ = std::make_shared<Deadline>();
  return deadline_;
}

void BackgroundSave::start(int64_t worker, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = false;
  }
  try {
    thread_ = start_service_thread(worker, "checkpoint writer", [this, job = std::move(job)]() mutable {
      std::exception_ptr error;
      try {
        job();
      } catch (...) {
        error = std::current_exception();
      }
      job = nullptr;  // so that what it holds, such as a mark, is let go before anybody learns that it has ended
      const std::lock_guard lock(mutex_);
      error_ = std::move(error);
      has_ended_ = true;
      ended_.notify_all();
    });
  } catch (...) {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    throw;
  }
}

bool BackgroundSave::has_ended_within(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, time, [&] { return has_ended_; });
}

void BackgroundSave::let_end(const Strategy& strategy) {
  // In rounds, so that a disk may take longer than a call of all workers may.
  constexpr std::chrono::seconds kRound(1);
  while (strategy.num_workers() > 1) {
    const bool mine = has_ended_within(kRound);
    const at::Tensor all = strategy.reduce(
        Reduction::kMin, strategy.per_replica([&](ReplicaId) { return at::full({}, mine ? 1 : 0, at::kLong); }));
    if (all.item<int64_t>() == 1) break;
  }
  join();
}

void BackgroundSave::wait(const Strategy& strategy) {
  let_end(strategy);
  const std::exception_ptr error = std::exchange(error_, nullptr);
  const bool follows = follows_another(error);
  all_or_none(strategy, "CheckpointManager::save", [&] {
    if (error && !follows) std::rethrow_exception(error);
  });
  if (strategy.num_workers() == 1) return;
  all_or_none(strategy, "CheckpointManager::save", [&] {
    if (error) std::rethrow_exception(error);
  });
}

void BackgroundSave::give_up() {
  deadline_->set_in(std::chrono::milliseconds(0));
  join();
  error_ = nullptr;
}

void BackgroundSave::join() {
  if (thread_.joinable()) thread_.join();
}

/// In a forked child the thread does not exist.
bool BackgroundSave::is_in_child() {
  if (!process_.is_in_child()) return false;
  if (thread_.joinable()) thread_.detach();
  return true;
}

}  // namespace lockstep::internal
