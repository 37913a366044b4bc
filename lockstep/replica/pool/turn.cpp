#include "lockstep/replica/pool/turn.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

#include "lockstep/core/pause_cpu.h"

namespace lockstep::internal::inline replica {

namespace {

std::atomic<int64_t> interval_ms{30000};

}  // namespace

std::chrono::milliseconds stall_interval() {
  return std::chrono::milliseconds(interval_ms.load(std::memory_order_relaxed));
}

void set_stall_interval(std::chrono::milliseconds interval) {
  interval_ms.store(interval.count(), std::memory_order_relaxed);
}

bool futex_wait(const std::atomic<uint32_t>& word, uint32_t value, std::chrono::milliseconds longest) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a 32-bit word");
  const timespec limit{longest.count() / 1000, longest.count() % 1000 * 1000000};
  const long result = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &limit, nullptr, 0);
  return result == 0 || errno != ETIMEDOUT;
}

void futex_wake(const std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void Turn::give() {
  given_.store(1, std::memory_order_release);
  futex_wake(given_, 1);
}

void Turn::take(OnStall on_stall) {
  take_looking([&] {
    on_stall();
    return stall_interval();
  });
}

void Turn::take_looking(OnLook look) {
  std::chrono::milliseconds longest = stall_interval();
  while (given_.load(std::memory_order_acquire) == 0) {
    if (!futex_wait(given_, 0, longest)) longest = look();
  }
  given_.store(0, std::memory_order_relaxed);
}

void Epoch::advance() {
  // Invariant: either the sleeper sees the new value, or this thread sees the sleeper. Both sides are sequentially
  // consistent for that.
  value_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake(value_, INT_MAX);
}

void Epoch::wait_while(uint32_t seen, Patience patience, OnStall on_stall) {
  for (int i = 0; i < patience.pauses; ++i) {
    if (now() != seen) return;
    pause_cpu();
  }
  for (int i = 0; i < patience.yields; ++i) {
    if (now() != seen) return;
    sched_yield();
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (value_.load(std::memory_order_seq_cst) == seen) {
    if (!futex_wait(value_, seen, stall_interval())) on_stall();
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace lockstep::internal::replica
