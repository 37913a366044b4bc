#include "lockstep/data/deal/step_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "lockstep/core/log.h"
#include "lockstep/core/process/warm_up.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/data/read_pool.h"
#include "lockstep/memory/tensor_cache.h"

namespace lockstep::internal::inline data {

StepFeed::StepFeed(std::unique_ptr<EpochReader> reader, int64_t depth, int64_t threads, std::string what,
                   std::chrono::milliseconds patience)
    : reader_(std::move(reader)), depth_(static_cast<std::size_t>(depth)), what_(std::move(what)), patience_(patience) {
  if (depth == 0) return;
  warm_up_math();
  try {
    for (int64_t i = 0; i < std::min(threads, depth); ++i) start_thread(i);
  } catch (const std::system_error&) {
    return;  // with the threads that there are; without any, next() reads
  }
}

StepFeed::~StepFeed() {
  if (is_lost()) {
    static_cast<void>(sync_.release());
    for (std::thread& thread : threads_)
      static_cast<void>(new std::thread(std::move(thread)));  // they are the parent's
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(sync_->mutex);
    stops_ = true;
  }
  sync_->changed.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

LocalStep StepFeed::read(const EpochReader::Work& work, TraceTrack track) {
  const TraceScope trace("read a step", TraceKind::kInput, track);
  const ReadingScope scope;
  const StageReading reading({.times = &times_});
  if (work) return work();
  LocalStep end;
  end.end = true;
  return end;
}

void StepFeed::start_thread(int64_t i) {
  threads_.emplace_back([this, i] {
    // What is read is freed by other threads, and its memory comes back for the steps that follow.
    const TensorCacheLease memory;
    exchange_thread_cache(&memory.cache());
    work(input_track(i));
    exchange_thread_cache(nullptr);
  });
}

void StepFeed::work(TraceTrack track) {
  const auto can_claim = [&] { return stops_ || over_ || slots_.size() < depth_; };
  std::unique_lock<std::mutex> lock(sync_->mutex);
  bool must_notify = false;  // somebody may wait for what this thread has done
  const auto unlock = [&] {
    lock.unlock();
    if (std::exchange(must_notify, false)) sync_->changed.notify_all();
  };
  while (true) {
    if (!can_claim()) {
      unlock();
      lock.lock();
      sync_->changed.wait(lock, can_claim);
    }
    if (stops_ || over_) return unlock();
    const auto slot = std::make_shared<Slot>();
    slots_.push_back(slot);
    try {
      const EpochReader::Work work = reader_->claim();
      if (!work) over_ = true;
      unlock();  // whoever is woken needs the lock
      slot->step = read(work, track);
      lock.lock();
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      slot->error = std::current_exception();
    }
    slot->done = true;
    if (slot->error || slot->step.end) over_ = true;
    // The loop waits for the first step only; waking it for another one would take a core from who reads.
    must_notify = over_ || slot == slots_.front();
  }
}

void StepFeed::wait_for_first(std::unique_lock<std::mutex>& lock) {
  const auto is_there = [&] { return !slots_.empty() && slots_.front()->done; };
  if (is_there()) return;
  const TraceScope trace("wait for input", TraceKind::kWait, lane_track(0));
  times_.restart();
  std::chrono::milliseconds waited{0};
  while (!sync_->changed.wait_for(lock, patience_, is_there)) {
    waited += patience_;
    warn_of_stall(waited);
  }
}

/// The warning comes only after the read, because no other thread watches it.
LocalStep StepFeed::read_here() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  times_.restart();
  LocalStep step = read(reader_->claim(), lane_track(0));
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
  if (waited >= patience_) warn_of_stall(waited);
  return step;
}

void StepFeed::warn_of_stall(std::chrono::milliseconds waited) const {
  const double seconds = std::chrono::duration<double>(waited).count();
  const std::string slowest = times_.slowest();
  log(LogLevel::kWarning,
      fmt::format("input stall: a step has waited {:.{}f} s for {}{}{}", seconds, seconds < 10 ? 3 : 0, what_,
                  slowest.empty() ? "" : "; its slowest stage is ", slowest));
}

LocalStep StepFeed::next() {
  if (threads_.empty()) return read_here();
  std::shared_ptr<Slot> slot;
  {
    std::unique_lock<std::mutex> lock(sync_->mutex);
    wait_for_first(lock);
    slot = slots_.front();
    slots_.pop_front();
    if (slot->step.end && !slot->error) slots_.push_front(slot);  // the end stays
  }
  sync_->changed.notify_all();
  if (slot->error) std::rethrow_exception(slot->error);
  return slot->step.end ? slot->step : std::move(slot->step);
}

}  // namespace lockstep::internal::data
