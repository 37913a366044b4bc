// Who may use the variables of a strategy while servers change them: the gate that its calls pass.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "lockstep/replica/call_gate.h"

namespace lockstep::internal::inline server {

/// One thread at a time passes, and its calls nest. The program's calls that change values first wait until all steps
/// that were scheduled before have been decided, so that they hold for later steps and for none before. Calls that a
/// strategy with parameter servers does not have, such as Strategy::run, are UsageErrors (LS-SCHEDULE) that say what
/// to call.
class StrategyGate final : public CallGate {
 public:
  void enter(const char* call) override;
  void leave() noexcept override;

  /// What calls of the program do while steps are scheduled; afterwards all are empty.
  struct Waits {
    std::function<void()> drain = {};       // waits until the steps that were scheduled so far have been decided
    std::function<void()> catch_up = {};    // waits until the servers have applied what was decided so far
    std::function<void()> begin_read = {};  // waits until the servers have applied what a read is to see
    std::function<void()> end_read = {};    // called when nothing is applied before the read has ended
  };
  /// The program's changes wait by the first two, its reads by the third.
  void set_waits(Waits waits);
  /// From now until let_write() no other thread of the program changes values: `drain` makes it wait, and calls that
  /// have passed that already come back to it. Waits for one that is under way.
  void hold_writes();
  void let_write() { holder_.store(std::thread::id()); }
  /// Throws a UsageError (LS-NESTED-CALL) where this thread is inside a call of the strategy: then `call` would wait
  /// for tasks that wait for that call.
  void require_not_inside(const char* call) const;
  /// How many calls of the program may have changed values.
  uint64_t writes() const { return writes_.load(std::memory_order_acquire); }

 private:
  std::recursive_mutex mutex_;
  std::atomic<std::thread::id> owner_{};
  std::atomic<std::thread::id> holder_{};  // who holds writes back
  int depth_ = 0;                          // guarded by mutex_
  bool is_writing_ = false;                // the call under way may change values; guarded by mutex_
  std::atomic<uint64_t> writes_{0};
  std::shared_mutex waits_mutex_;  // shared while a call waits by them
  Waits waits_;                    // guarded by waits_mutex_
};

/// What a thread is to the gate.
enum class Caller : uint8_t {
  kProgram,
  kTask,  // of the run: it may make runs, and waits for nothing but its turn
  kStep,  // the function of a scheduled step: its calls are those of its WorkerContext
};

/// While it lives, the calling thread is this.
class CallerScope {
 public:
  explicit CallerScope(Caller caller);
  ~CallerScope();
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;

 private:
  const Caller outer_;
};

/// Throws the UsageError of a call of the program that a scheduled step makes.
void refuse_in_scheduled_step(const char* call);

}  // namespace lockstep::internal::server
