// The calls of one strategy on its World, so that all workers fail after the same one of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/core/error.h"
#include "lockstep/core/unwinding.h"

namespace lockstep::internal::inline comm {

/// A round is one call of World::agree or World::exchange, in which all workers take part. (The replicas of one worker
/// meet in rounds of their own: replica/pool/round.h. Most of these begin with a round of the workers.)
///
/// Invariant: all workers see the same records in a round, and so they fail in the same round. After it none of them
/// takes part in another one before its next call from outside of steps. So the n-th round of a worker remains the n-th
/// of all others, wherever in a step the failure was found, and also where the step catches the error.
///
/// One thread at a time uses it, as World says, but for the phase and the mutex.
class Rounds {
 public:
  explicit Rounds(std::shared_ptr<World> world) : world_(std::move(world)) {}

  int64_t num_workers() const { return world_->num_workers(); }
  int64_t worker_index() const { return world_->worker_index(); }
  std::string describe() const { return world_->describe(); }
  /// See World::host_memory.
  HostMemory* host_memory() const { return world_->host_memory(); }
  /// See World::windows. Whoever uses it while replicas run holds windows_mutex(), which any thread may take.
  Windows* windows() const { return world_->windows(); }
  std::mutex& windows_mutex() { return windows_mutex_; }

  /// What this worker does now; the others are told. With one worker there is nobody to tell. Any thread may call.
  void set_phase(const WorkerPhase& phase) {
    if (alone_) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    phase_ = phase;
    tell_phase();
  }
  /// Throws where the run has ended: see World::require_running. Any thread may call.
  void require_running() const { world_->require_running(); }
  /// The step that input is read for. Any thread may call.
  void set_next_step(int64_t step) {
    if (alone_) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    next_step_ = step;
  }
  /// What was set last: without kInput, which only the others see.
  WorkerPhase phase() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return phase_;
  }

  /// A call from outside of steps begins. Forgets the failure of an earlier one.
  void begin() { failure_ = nullptr; }
  /// Why this call has failed: this worker's own error, or the error that another worker's record led to; or null.
  const std::exception_ptr& failure() const { return failure_; }
  /// All workers know, from the round that was just made, that this worker has failed with `error`. The first failure
  /// stays.
  void fail(std::exception_ptr error) {
    if (!failure_) failure_ = std::move(error);
  }

  /// Sends a record and returns `read(records of all workers)`. Throws what `read` throws, which is then the failure:
  /// where it throws on one worker it must throw on all, since all read the same records. Where there was a failure
  /// before, nothing is sent, and that failure is thrown.
  template <class Read>
  std::invoke_result_t<const Read&, const std::vector<std::string>&> agree(const std::string& mine, const Read& read) {
    return unless_failed([&] { return or_end_run([&] { return read(world_->agree(mine)); }); });
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) {
    unless_failed([&] { or_end_run([&] { world_->exchange(to, from); }); });
  }

  /// Does `work`, which stands between a round and what all workers do after it without another agreement: an exchange,
  /// or an update. They cannot be told of a failure there, because they wait for bytes or have gone on. So an exception
  /// of this worker alone, as where it has no memory, ends the run for all (World::abort). An Error does not, unless it
  /// is an InternalError: it follows from what all have agreed on, and they throw it too. Lanes may call it side by
  /// side.
  template <class Work>
  std::invoke_result_t<const Work&> or_end_run(const Work& work) {
    if (alone_) return work();
    try {
      return work();
    } catch (const InternalError&) {
      if (!failure_) end_run(std::current_exception());
      throw;
    } catch (const Error&) {
      throw;
    } catch (...) {
      if (!failure_) end_run(std::current_exception());
      throw;
    }
  }

 private:
  template <class Call>
  std::invoke_result_t<const Call&> unless_failed(const Call& call) {
    if (failure_) std::rethrow_exception(failure_);
    try {
      return call();
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }

  void end_run(const std::exception_ptr& error) noexcept {
    try {
      world_->abort(message_of(error));
    } catch (...) {
      world_->abort("no memory");  // not even for the message
    }
  }

  friend class InputScope;
  void count_input(int change, std::chrono::milliseconds limit, bool tells = true) {
    if (alone_) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    inputs_ += change;
    if (change > 0) limit_of_input_ = limit;
    if (tells) tell_phase();
  }
  void tell_phase() {
    using Kind = WorkerPhase::Kind;
    const bool waits = inputs_ > 0 && (phase_.kind == Kind::kBetween || phase_.kind == Kind::kStarting);
    world_->set_phase(waits ? WorkerPhase{.kind = Kind::kInput, .step = next_step_, .limit = limit_of_input_} : phase_);
  }

  const std::shared_ptr<World> world_;
  const bool alone_ = world_->num_workers() == 1;
  mutable std::mutex mutex_;
  WorkerPhase phase_;      // guarded by mutex_
  int64_t next_step_ = 0;  // guarded by mutex_
  int inputs_ = 0;         // how many threads wait for a batch; guarded by mutex_, as is the next one
  std::chrono::milliseconds limit_of_input_ = {};
  std::exception_ptr failure_;
  std::mutex windows_mutex_;
};

/// Sets a phase, and the one of before at its end.
class PhaseScope {
 public:
  PhaseScope(Rounds& rounds, const WorkerPhase& phase) : rounds_(rounds), before_(rounds.phase()) {
    rounds_.set_phase(phase);
  }
  ~PhaseScope() { rounds_.set_phase(before_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Rounds& rounds_;
  const WorkerPhase before_;
};

/// While it lives, this worker carries out a function of the program in a call of all workers, and the others wait for
/// it: as long as `limit` says, or where it is 0 as long as they wait for any work. A save or a restore stays one: it
/// is work too. Throws a UsageError for a limit that is negative, or beyond 365 days.
class WorkScope {
 public:
  WorkScope(Rounds& rounds, WorkerPhase::Kind kind, int64_t step, std::chrono::milliseconds limit = {}) {
    require_limit(limit);
    if (!rounds.phase().is_work()) phase_.emplace(rounds, WorkerPhase{.kind = kind, .step = step, .limit = limit});
  }

 private:
  std::optional<PhaseScope> phase_;
};

/// While it lives, a thread of this worker waits for its next batch. That is told where the worker does nothing else: a
/// data set may be read on one thread while another one makes a call of the strategy. Where an exception ends the wait,
/// the others hear that this worker failed there, if it leaves: what it told stays until its next phase.
class InputScope {
 public:
  /// `limit` is how long the others wait for it; 0: as long as for any work.
  explicit InputScope(Rounds& rounds, std::chrono::milliseconds limit = {}) : rounds_(rounds) {
    rounds_.count_input(1, limit);
  }
  ~InputScope() { rounds_.count_input(-1, {}, !unwinding_.is_on()); }
  InputScope(const InputScope&) = delete;
  InputScope& operator=(const InputScope&) = delete;

 private:
  Rounds& rounds_;
  const Unwinding unwinding_;
};

}  // namespace lockstep::internal::comm
