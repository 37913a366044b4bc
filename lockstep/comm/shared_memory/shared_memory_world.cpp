#include "lockstep/comm/shared_memory/shared_memory_world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "lockstep/comm/failure/call_wait.h"
#include "lockstep/comm/failure/exits.h"
#include "lockstep/comm/failure/run_failure.h"
#include "lockstep/comm/join/this_host.h"
#include "lockstep/comm/message.h"
#include "lockstep/comm/shared_memory/extents.h"
#include "lockstep/comm/shared_memory/monitor.h"
#include "lockstep/comm/shared_memory/ring_stream.h"
#include "lockstep/comm/shared_memory/segment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/pause_cpu.h"
#include "lockstep/core/process/forks.h"
#include "lockstep/core/unwinding.h"

namespace lockstep::internal::inline comm {

namespace {

using std::chrono::milliseconds;

std::vector<int64_t> all_workers(int64_t count) {
  std::vector<int64_t> workers(static_cast<std::size_t>(count));
  std::iota(workers.begin(), workers.end(), int64_t{0});
  return workers;
}

class SharedMemoryWorld final : public World {
 public:
  SharedMemoryWorld(RendezvousResult team, int64_t worker, const WorkerTimeouts& timeouts)
      : segment_(std::move(team.segment)),
        extents_(segment_.file(), segment_.length(), all_workers(segment_.workers())),
        worker_(worker),
        timeouts_(timeouts),
        no_memory_(encode(RunFailure{
            .text = fmt::format("worker {} (process {} on host {}) had no memory", worker, getpid(), host_name()),
            .worker = worker,
            .process = getpid(),
            .host = host_name(),
            .noticed = PeerError::Noticed::kFailed})),
        spins_(sysconf(_SC_NPROCESSORS_ONLN) >= segment_.workers() ? 4000 : 50),
        monitor_(std::make_unique<WorkerMonitor>(segment_, worker, std::move(team.peers), timeouts.lost)) {
    segment_.worker(worker_).process.store(getpid());
    // The others report that the program has ended, and not a crash.
    at_exit(this, [area = &segment_.worker(worker_)] { area->presence.store(Presence::kExited); });
  }

  ~SharedMemoryWorld() override {
    if (process_.is_in_child()) {
      // The thread did not come along.
      static_cast<void>(monitor_.release());
      return;
    }
    forget_at_exit(this);
    if (unwinding_.is_on()) try {
        segment_.end(worker_,
                     monitor_->failure_of(
                         worker_, PeerError::Noticed::kException,
                         fmt::format("worker {} (process {}) was ended by an exception, which it reports itself",
                                     worker_, getpid())));
      } catch (const std::exception&) {  // short of memory: an exception is under way, and no other may follow
        segment_.end(worker_, "a worker was ended by an exception");
      }
    Presence here = Presence::kHere;  // otherwise the program is ending, and has said so
    segment_.worker(worker_).presence.compare_exchange_strong(here, Presence::kLeft);
  }
  SharedMemoryWorld(const SharedMemoryWorld&) = delete;
  SharedMemoryWorld& operator=(const SharedMemoryWorld&) = delete;

  int64_t num_workers() const override { return segment_.workers(); }
  int64_t worker_index() const override { return worker_; }

  std::vector<std::string> agree(const std::string& mine) override {
    require_record_size(mine.size());
    std::vector<std::string> all(static_cast<std::size_t>(num_workers()));
    all[static_cast<std::size_t>(worker_)] = mine;
    call(
        MessageHead::Kind::kRecord, [&](int64_t) { return std::as_bytes(std::span(mine)); },
        [&](int64_t other) -> std::string& { return all[static_cast<std::size_t>(other)]; });
    return all;
  }

  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    require_one_for_each_worker(to.size(), from.size(), num_workers());
    call(
        MessageHead::Kind::kBytes, [&](int64_t other) { return to[static_cast<std::size_t>(other)]; },
        [&](int64_t other) { return from[static_cast<std::size_t>(other)]; });
  }

  HostMemory* host_memory() override { return &extents_; }

  std::string describe() const override {
    return "shared-memory: memory without a name, which only the processes of this job and this user map";
  }

  void require_running() const override {
    if (process_.is_in_child()) process_.throw_forked("worker", worker_, worker_);
    if (segment_.has_ended()) throw error_of(decode_failure(segment_.ended()));
  }

  void set_phase(const WorkerPhase& phase) noexcept override {
    if (process_.is_in_child()) return;  // the memory is not mapped there
    segment_.worker(worker_).phase.store(encode(phase), std::memory_order_relaxed);
  }

  void abort(const std::string& reason) noexcept override try {
    if (process_.is_in_child()) return;
    segment_.end(worker_, monitor_->failure_of(worker_, PeerError::Noticed::kAborted,
                                               fmt::format("worker {} aborted the run: {}", worker_, reason)));
  } catch (const std::exception&) {  // no memory for the text
    segment_.end(worker_, no_memory_);
  }

 private:
  /// One call in which all workers take part: `sent(w)` goes to worker w, `place(w)` gets what comes from it.
  template <class Sent, class Place>
  void call(MessageHead::Kind kind, const Sent& sent, const Place& place) try {
    if (process_.is_in_child()) process_.throw_forked("worker", worker_, worker_);
    WorkerArea& self = segment_.worker(worker_);
    const uint64_t call = self.begun.load(std::memory_order_relaxed) + 1;
    require_alive(call);
    self.begun.store(call);
    std::vector<RingSending> sendings;
    std::vector<RingReceiving> receivings;
    for (int64_t step = 1; step < num_workers(); ++step) {
      // Each worker begins with another one, so that they do not all go to the same.
      const int64_t to = (worker_ + step) % num_workers();
      const int64_t from = (worker_ + num_workers() - step) % num_workers();
      const std::span<const std::byte> bytes = sent(to);
      sendings.emplace_back(segment_, worker_, to, MessageHead{kind, call, bytes.size()}, bytes);
      receivings.emplace_back(segment_, from, worker_, call, place(from));
    }
    std::string problem;
    // Whether something moved; over when nothing is left to move.
    const auto move = [&] {
      bool moved = false;
      for (RingSending& one : sendings) moved |= one.advance();
      for (RingReceiving& one : receivings) moved |= one.advance(problem);
      return moved;
    };
    const auto is_over = [&] {
      return std::all_of(sendings.begin(), sendings.end(), [](const auto& one) { return one.is_over(); }) &&
             std::all_of(receivings.begin(), receivings.end(), [](const auto& one) { return one.is_over(); });
    };
    wait_until(call, [&] {
      while (move()) {
        if (segment_.has_ended()) return false;
      }
      if (!problem.empty()) segment_.end(worker_, monitor_->failure_of(-1, PeerError::Noticed::kMessage, problem));
      return is_over();
    });
    self.taken.store(call);
    for (int64_t w = 0; w < num_workers(); ++w) segment_.wake(w);
    wait_until(call, [&] {
      if (segment_.is_committed(call)) return true;
      for (int64_t w = 0; w < num_workers(); ++w) {
        if (segment_.worker(w).taken.load() < call) return false;
      }
      return segment_.commit(call);
    });
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {  // no memory for a record
    segment_.end(worker_, no_memory_);
    throw;
  }

  /// Waits until `is_done()`, which may carry out some of the work. Throws where the run has ended and `call` is not
  /// committed, and gives up after the patience.
  template <class Done>
  void wait_until(uint64_t call, const Done& is_done) {
    for (int i = 0; i < spins_; ++i) {
      if (is_done()) return;
      if (segment_.has_ended()) break;
      pause_cpu();
    }
    CallWait wait(timeouts_);
    while (true) {
      if (is_done()) return;
      require_alive(call);
      switch (wait.count([&] { return limit_of_work(call); })) {
        case CallWait::Verdict::kGoOn: break;
        case CallWait::Verdict::kWarn:
          log(LogLevel::kWarning, fmt::format("worker {} has waited {:.0f} s: {}", worker_, wait.seconds(),
                                              who_has_not_come(call, who_is_missing(call))));
          break;
        case CallWait::Verdict::kGiveUp: give_up(call, wait); require_alive(call);
      }
      bool done = false;
      segment_.wait(worker_, std::chrono::nanoseconds(wait.longest_sleep()).count(), [&] {
        done = is_done();
        return done || segment_.has_ended();
      });
      if (done) return;
    }
  }

  void give_up(uint64_t call, const CallWait& wait) {
    const std::vector<int64_t> missing = who_is_missing(call);
    if (missing.empty()) return;  // they have come by now
    segment_.end(worker_, monitor_->failure_of(missing.front(), PeerError::Noticed::kAbsent,
                                               fmt::format("after {:.1f} s {}; {}", wait.seconds(),
                                                           who_has_not_come(call, missing), wait.bound())));
  }

  /// Of those who have not come to this call. Whoever has come is not at work.
  std::optional<milliseconds> limit_of_work(uint64_t call) const {
    return monitor_->phases().limit_of_work(who_has_not_begun(call), timeouts_.work);
  }
  std::vector<int64_t> who_has_not_begun(uint64_t call) const {
    std::vector<int64_t> missing;
    for (int64_t w = 0; w < num_workers(); ++w) {
      if (segment_.worker(w).begun.load() < call) missing.push_back(w);
    }
    return missing;
  }

  /// Who has not come to this call, or else whoever has come and not finished it.
  std::vector<int64_t> who_is_missing(uint64_t call) const {
    std::vector<int64_t> missing = who_has_not_begun(call);
    if (!missing.empty()) return missing;
    for (int64_t w = 0; w < num_workers(); ++w) {
      if (w != worker_ && segment_.worker(w).taken.load() < call) missing.push_back(w);
    }
    return missing;
  }
  /// "worker 2 has not come to call 17", and what it does.
  std::string who_has_not_come(uint64_t call, const std::vector<int64_t>& missing) const {
    const bool have_begun =
        std::all_of(missing.begin(), missing.end(), [&](int64_t w) { return segment_.worker(w).begun.load() >= call; });
    return missing_text(missing, have_begun ? "finished" : "come to", call, monitor_->phases());
  }

  /// Throws where the run has ended before `call` was committed.
  void require_alive(uint64_t call) const {
    if (!segment_.has_ended() || segment_.is_committed(call)) return;
    throw error_of(decode_failure(segment_.ended()));
  }

  const ProcessMark process_;
  const Unwinding unwinding_;
  const Segment segment_;
  Extents extents_;
  const int64_t worker_;
  const WorkerTimeouts timeouts_;
  const std::string no_memory_;  // why this worker ends the run where it has none for a text
  const int spins_;              // before it sleeps
  std::unique_ptr<WorkerMonitor> monitor_;
};

}  // namespace

std::shared_ptr<World> join_shared_memory(const LocalJob& job, const WorkerTimeouts& timeouts) {
  return std::make_shared<SharedMemoryWorld>(rendezvous(job, timeouts.join), job.worker_index, timeouts);
}

}  // namespace lockstep::internal::comm
