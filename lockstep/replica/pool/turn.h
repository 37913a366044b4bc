// The two waits of a step, on futexes: for a lane's turn, and for the other lanes at a barrier.
//
// Inside a lane a waiter sleeps at once, because it shares a core with the replica that it waits for. Between lanes a
// waiter first spins where every lane has its own cores, because the others arrive within microseconds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "lockstep/core/function_ref.h"

namespace lockstep::internal::inline replica {

/// Called each time a wait has lasted another stall_interval(); it reports which replicas are missing. Must not throw.
using OnStall = FunctionRef<void()>;

/// How long a wait lasts before it is reported: 30 s. Tests make it shorter.
std::chrono::milliseconds stall_interval();
void set_stall_interval(std::chrono::milliseconds interval);

/// Called each time a wait has lasted another while, stall_interval() at first; returns how long the next one is. Must
/// not throw.
using OnLook = FunctionRef<std::chrono::milliseconds()>;

/// Sleeps until `word` is no longer `value` or another thread wakes it; spurious returns are possible. Returns false
/// where it slept for `longest`.
bool futex_wait(const std::atomic<uint32_t>& word, uint32_t value, std::chrono::milliseconds longest);
void futex_wake(const std::atomic<uint32_t>& word, int count);

/// The right to run inside a lane, given to one replica.
/// Invariant: one thread gives and one thread takes at a time, so plain stores are enough.
class alignas(64) Turn {
 public:
  void give();
  /// Sleeps until it is given, and takes it.
  void take(OnStall on_stall);
  void take_looking(OnLook look);

 private:
  std::atomic<uint32_t> given_{0};
};

/// How a waiter between lanes waits before it sleeps. Waking a sleeper costs 5 to 50 us.
struct Patience {
  int pauses;
  int yields = 20;
};
/// In a run, where lanes have their own cores: about half a millisecond, the time by which replicas of one step differ.
inline constexpr Patience kPatientInRun{.pauses = 20000};
/// Between runs, when the caller may need the cores: about 50 us.
inline constexpr Patience kPatientBetweenRuns{.pauses = 2000};
/// Where lanes share cores: a waiter that spins would hold up the lane that it waits for.
inline constexpr Patience kImpatient{.pauses = 0};

/// A number that only grows; other threads wait until it changes.
class alignas(64) Epoch {
 public:
  uint32_t now() const { return value_.load(std::memory_order_acquire); }
  void advance();
  /// Returns when the value is no longer `seen`. A wait between runs has no stall: pass an `on_stall` that does
  /// nothing.
  void wait_while(uint32_t seen, Patience patience, OnStall on_stall);

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

/// Where all lanes meet. The last lane to arrive runs `serial` while the others wait; then all go on. Invariant:
/// `serial` sees everything that the lanes wrote before they arrived, and every lane sees what `serial` wrote.
class LaneBarrier {
 public:
  LaneBarrier(int lanes, Patience patience) : lanes_(lanes), patience_(patience) {}

  template <class Serial>
  void arrive(const Serial& serial, OnStall on_stall) {
    const uint32_t generation = generation_.now();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == lanes_) {
      arrived_.store(0, std::memory_order_relaxed);
      serial();
      generation_.advance();
    } else {
      generation_.wait_while(generation, patience_, on_stall);
    }
  }

 private:
  const int lanes_;
  const Patience patience_;
  alignas(64) std::atomic<int> arrived_{0};
  Epoch generation_;
};

}  // namespace lockstep::internal::replica
