#include "lockstep/checkpoint/background_save.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "lockstep/checkpoint/folder/together.h"
#include "lockstep/comm/service_thread.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal::inline checkpoint {

namespace {

// How long other workers, and this one's disk, may take. A disk may need minutes.
constexpr std::chrono::minutes kPatience(10);

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
  // Where the run ends by an error, another worker may write no more, or it may be a moment behind.
  constexpr std::chrono::seconds kGrace(5);
  const bool failed = std::uncaught_exceptions() > 0 || StrategyAccess::rounds(strategy_).failure() != nullptr;
  deadline_->set_in(failed ? kGrace : std::chrono::milliseconds(kPatience));
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

std::vector<int64_t> BackgroundSave::at_work_after(std::chrono::milliseconds time) {
  const int64_t mine = has_ended_within(time) ? -1 : strategy_.worker_index();
  const at::Tensor all =
      strategy_.gather(strategy_.per_replica([&](ReplicaId) { return at::full({1}, mine, at::kLong); }));
  const std::span<const int64_t> told = host_numbers<int64_t>(all);
  std::vector<int64_t> workers(told.begin(), told.end());
  std::erase(workers, -1);
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  return workers;
}

void BackgroundSave::let_end() {
  if (strategy_.num_workers() == 1) return join();
  // In rounds, so that a disk may take longer than a call of all workers may. All see the same, and count alike.
  constexpr std::chrono::seconds kRound(1);
  constexpr int64_t kWarned = 30;
  for (int64_t round = 1;; ++round) {
    const std::vector<int64_t> workers = at_work_after(kRound);
    if (workers.empty()) break;
    // Some of them may wait for another one of them.
    const std::string fact =
        fmt::format("worker{} {} still write{} a checkpoint after {} s", workers.size() > 1 ? "s" : "",
                    fmt::join(workers, ", "), workers.size() > 1 ? "" : "s", round);
    if (round % kWarned == 0 && strategy_.is_chief()) log(LogLevel::kWarning, fact);
    if (round * kRound >= kPatience) throw PeerError("LS-CHECKPOINT-SHARE", fact, "look at the disks of these workers");
  }
  join();
}

void BackgroundSave::wait() {
  let_end();
  const std::exception_ptr error = std::exchange(error_, nullptr);
  const bool follows = follows_another(error);
  if (strategy_.num_workers() == 1) {
    if (error) std::rethrow_exception(error);
    return;
  }
  all_or_none(strategy_, "CheckpointManager::save", [&] {
    if (error && !follows) std::rethrow_exception(error);
  });
  all_or_none(strategy_, "CheckpointManager::save", [&] {
    if (error) std::rethrow_exception(error);
  });
}

void BackgroundSave::give_up() {
  deadline_->set_in(std::chrono::milliseconds(0));
  join();
  error_ = nullptr;
}

void BackgroundSave::abandon() {
  constexpr std::chrono::seconds kGrace(5);
  deadline_->abandon();
  if (!has_ended_within(kGrace)) return;  // its disk hangs; the next call, or the destructor, waits for it
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

}  // namespace lockstep::internal::checkpoint
