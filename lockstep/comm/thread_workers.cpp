#include "lockstep/comm/thread_workers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "lockstep/comm/failure/call_wait.h"
#include "lockstep/comm/failure/run_failure.h"
#include "lockstep/comm/failure/seen_phases.h"
#include "lockstep/comm/host_memory.h"
#include "lockstep/comm/thread_windows.h"
#include "lockstep/comm/window_table.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process/forks.h"
#include "lockstep/core/process/warm_up.h"

namespace lockstep {

/// Where the workers meet. A call is one round of two halves: each worker puts down its offer and waits until all
/// workers have, then each takes what it needs and waits until all have taken.
class ThreadWorkers::Hub {
 public:
  using Bytes = std::span<const std::byte>;
  /// What a worker brings to a round: a record for all, or bytes for each.
  struct Offer {
    enum class Kind : uint8_t { kRecord, kBytes } kind = Kind::kRecord;
    std::string record = {};
    std::vector<Bytes> bytes = {};
  };

  Hub(int64_t workers, const WorkerTimeouts& timeouts, std::vector<int64_t> hosts)
      : timeouts_(timeouts),
        hosts_(std::move(hosts)),
        offers_(static_cast<std::size_t>(workers)),
        phases_(static_cast<std::size_t>(workers)),
        seen_(workers),
        puts_(workers),
        gone_(static_cast<std::size_t>(workers)) {}

  int64_t size() const { return static_cast<int64_t>(offers_.size()); }
  /// As HostMemory::workers().
  std::vector<int64_t> workers_of_host(int64_t worker) const {
    std::vector<int64_t> workers;
    for (int64_t w = 0; w < size(); ++w) {
      if (host_of(w) == host_of(worker)) workers.push_back(w);
    }
    return workers;
  }

  /// One round. `take` is called when all workers have put down their offers; no offer changes while it runs.
  template <class Take>
  void round(int64_t worker, Offer offer, const Take& take) {
    if (process_.is_in_child()) process_.throw_forked("worker", 0, size() - 1);
    std::unique_lock<std::mutex> lock(mutex_);
    try {
      round(lock, worker, std::move(offer), take);
    } catch (...) {
      // The caller may free its bytes now, so no other worker may still copy them. Copies end, so this wait does.
      changed_.wait(lock, [&] { return taking_ == 0; });
      throw;
    }
  }

  void abort(int64_t worker, const std::string& reason) noexcept {
    if (process_.is_in_child()) return;  // no worker is here, and one may have held the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    fail(fmt::format("worker {} aborted the run: {}", worker, reason), worker, Noticed::kAborted);
  }

  void require_running() {
    if (process_.is_in_child()) process_.throw_forked("worker", 0, size() - 1);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.text.empty() && somebody_is_gone()) fail_as_left();
    require_alive();
  }

  void set_phase(int64_t worker, const WorkerPhase& phase) noexcept {
    phases_[static_cast<std::size_t>(worker)].store(internal::encode(phase), std::memory_order_relaxed);
  }

  /// What the worker's next call of HostMemory::allocate gives.
  std::shared_ptr<std::byte> allocate(int64_t worker, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t call = allocations_[static_cast<std::size_t>(worker)]++;
    const std::pair<int64_t, uint64_t> key{host_of(worker), call};
    Extent& extent = extents_[key];
    if (!extent.memory) extent = {zeros(bytes), bytes, 0};
    if (extent.bytes != bytes) {
      throw InternalError(
          "LS-INTERNAL",
          fmt::format("worker {} asks for {} bytes where another one asks for {}", worker, bytes, extent.bytes),
          "please report it");
    }
    std::shared_ptr<std::byte> memory = extent.memory;
    if (++extent.taken == workers_of_host(worker).size()) extents_.erase(key);
    return memory;
  }

  void put(int64_t to, internal::ThreadPuts::Put put) {
    if (process_.is_in_child()) process_.throw_forked("worker", 0, size() - 1);
    puts_.put(to, std::move(put));
  }
  /// Brings what has been put into a worker's windows. What is wrong with it; otherwise empty.
  std::string bring(int64_t worker, internal::WindowTable& windows) {
    if (process_.is_in_child()) return {};
    return puts_.bring(worker, windows);
  }

  void leave(int64_t worker) {
    if (process_.is_in_child()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    gone_[static_cast<std::size_t>(worker)] = true;
    changed_.notify_all();
  }

 private:
  /// Memory for all workers of a host, until all have it.
  struct Extent {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes = 0;
    std::size_t taken = 0;
  };
  static std::shared_ptr<std::byte> zeros(std::size_t bytes) {
    constexpr std::size_t kPage = 4096;
    const std::size_t length = (bytes + kPage - 1) / kPage * kPage + kPage;
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kPage, length));
    if (!memory) throw std::bad_alloc();
    std::memset(memory, 0, length);
    return {memory, [](std::byte* one) { std::free(one); }};
  }

  int64_t host_of(int64_t worker) const { return hosts_.empty() ? 0 : hosts_[static_cast<std::size_t>(worker)]; }

  // Called with mutex_ held.
  template <class Take>
  void round(std::unique_lock<std::mutex>& lock, int64_t worker, Offer offer, const Take& take) {
    require_alive();
    const Offer::Kind kind = offer.kind;
    offers_[static_cast<std::size_t>(worker)] = std::move(offer);
    wait_for_all(lock, worker, "come to");
    for (int64_t other = 0; other < size(); ++other) {
      if (offers_[static_cast<std::size_t>(other)].kind == kind) continue;
      fail(fmt::format("worker {} called agree() while worker {} called exchange()",
                       kind == Offer::Kind::kRecord ? worker : other, kind == Offer::Kind::kRecord ? other : worker));
      require_alive();
    }
    require_alive();  // a worker that has failed since then may free its bytes
    // Invariant: no worker puts down an offer, or frees its bytes, while another one takes.
    ++taking_;
    lock.unlock();
    std::string problem;
    std::exception_ptr error;
    try {
      problem = take(offers_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (--taking_ == 0) changed_.notify_all();
    if (error) {
      fail(fmt::format("worker {} could not take what the others sent: {}", worker, message_of(error)), worker,
           Noticed::kFailed);
      std::rethrow_exception(error);
    }
    if (!problem.empty()) fail(problem);
    require_alive();  // before this worker counts as finished: all others still wait, and see the failure
    wait_for_all(lock, worker, "finished");
  }

  using Noticed = PeerError::Noticed;
  void require_alive() const {
    if (failure_.text.empty()) return;
    throw internal::error_of(failure_);
  }
  /// The first failure stays. `worker` is the one that has failed, -1 where no single one has.
  void fail(const std::string& why, int64_t worker = -1, Noticed noticed = Noticed::kMessage) {
    if (failure_.text.empty()) {
      failure_ = {.text = why, .worker = worker, .process = getpid(), .host = {}, .noticed = noticed};
      if (worker >= 0) {
        failure_.phase = internal::decode_phase(phases_[static_cast<std::size_t>(worker)].load());
        failure_.text += fmt::format("; worker {} was {}", worker, internal::describe(*failure_.phase));
      }
      for (int64_t w = 0; w < size(); ++w) {
        internal::tell_at_work(w, internal::decode_phase(phases_[static_cast<std::size_t>(w)].load()), failure_.text);
      }
    }
    changed_.notify_all();
  }
  void fail_as_left() { fail(fmt::format("worker {} left the run", first_gone()), first_gone(), Noticed::kLeft); }
  /// Waits until all workers are here, in this half of the round.
  void wait_for_all(std::unique_lock<std::mutex>& lock, int64_t worker, const char* verb) {
    here_[static_cast<std::size_t>(worker)] = true;
    const uint64_t half = half_;
    if (++arrived_ == size()) {
      arrived_ = 0;
      ++half_;
      here_.assign(offers_.size(), false);
      changed_.notify_all();
      return;
    }
    const auto over = [&] { return half_ != half || !failure_.text.empty() || somebody_is_gone(); };
    internal::CallWait wait(timeouts_);
    while (!changed_.wait_for(lock, wait.longest_sleep(), over)) {
      // In the other half of the round all have come, so none of them is at work.
      const auto limit_of_work = [&] {
        return half_ % 2 == 0 ? phases().limit_of_work(all_missing(), timeouts_.work) : std::nullopt;
      };
      const auto verdict = wait.count(limit_of_work);
      if (verdict == internal::CallWait::Verdict::kGoOn) continue;
      const std::string missing = internal::missing_text(all_missing(), verb, half_ / 2 + 1, phases());
      if (verdict == internal::CallWait::Verdict::kWarn) {
        internal::log(LogLevel::kWarning,
                      fmt::format("worker {} has waited {:.0f} s: {}", worker, wait.seconds(), missing));
        continue;
      }
      fail(fmt::format("after {:.1f} s {}; {}", wait.seconds(), missing, wait.bound()), first_missing(),
           Noticed::kAbsent);
    }
    if (half_ != half) return;  // all came; the next call finds a worker that left or failed afterwards
    if (failure_.text.empty()) fail_as_left();
    require_alive();
  }
  const internal::SeenPhases& phases() {
    for (int64_t w = 0; w < size(); ++w) seen_.see(w, phases_[static_cast<std::size_t>(w)].load());
    return seen_;
  }
  bool somebody_is_gone() const { return first_gone() >= 0; }
  int64_t first_gone() const { return first(gone_, true); }
  int64_t first_missing() const { return first(here_, false); }
  std::vector<int64_t> all_missing() const {
    std::vector<int64_t> missing;
    for (int64_t w = 0; w < size(); ++w) {
      if (!here_[static_cast<std::size_t>(w)]) missing.push_back(w);
    }
    return missing;
  }
  static int64_t first(const std::vector<bool>& all, bool value) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] == value) return static_cast<int64_t>(i);
    }
    return -1;
  }

  const WorkerTimeouts timeouts_;
  const std::vector<int64_t> hosts_;     // by worker; empty: all on one
  const internal::ProcessMark process_;  // where the workers' threads are
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Offer> offers_;  // each written by its worker under mutex_, read by all between the halves of a round
  std::vector<std::atomic<uint64_t>> phases_;  // by worker, as encode() gives them
  internal::SeenPhases seen_;
  internal::ThreadPuts puts_;
  // Guarded by mutex_:
  std::vector<bool> gone_;
  std::vector<bool> here_ = std::vector<bool>(offers_.size());
  int64_t arrived_ = 0;
  int64_t taking_ = 0;  // how many workers read the offers
  uint64_t half_ = 0;
  internal::RunFailure failure_;
  std::vector<uint64_t> allocations_ = std::vector<uint64_t>(offers_.size());  // by worker: how many it has made
  std::map<std::pair<int64_t, uint64_t>, Extent> extents_;                     // by host and number of the call
};

namespace {

template <class Hub>
class ThreadWorld final : public World, private HostMemory, private Windows {
 public:
  ThreadWorld(std::shared_ptr<Hub> hub, int64_t worker) : hub_(std::move(hub)), worker_(worker) {}
  ~ThreadWorld() override { hub_->leave(worker_); }
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  int64_t num_workers() const override { return hub_->size(); }
  int64_t worker_index() const override { return worker_; }

  std::vector<std::string> agree(const std::string& mine) override {
    std::vector<std::string> all;
    hub_->round(worker_, {.record = mine}, [&](const auto& offers) {
      for (const auto& offer : offers) all.push_back(offer.record);
      return hub_->bring(worker_, windows_);
    });
    return all;
  }

  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    internal::require_one_for_each_worker(to.size(), from.size(), hub_->size());
    hub_->round(worker_, {.kind = Hub::Offer::Kind::kBytes, .bytes = {to.begin(), to.end()}}, [&](const auto& offers) {
      for (std::size_t w = 0; w < offers.size(); ++w) {
        if (static_cast<int64_t>(w) == worker_) continue;
        const auto& sent = offers[w].bytes[static_cast<std::size_t>(worker_)];
        if (sent.size() != from[w].size()) {
          return fmt::format("worker {} sent {} bytes where worker {} expects {}", w, sent.size(), worker_,
                             from[w].size());
        }
        if (!sent.empty()) std::memcpy(from[w].data(), sent.data(), sent.size());
      }
      return hub_->bring(worker_, windows_);
    });
  }

  HostMemory* host_memory() override { return this; }
  Windows* windows() override { return this; }
  std::string describe() const override { return "threads of one process"; }
  void require_running() const override { hub_->require_running(); }
  void set_phase(const WorkerPhase& phase) noexcept override { hub_->set_phase(worker_, phase); }
  void abort(const std::string& reason) noexcept override { hub_->abort(worker_, reason); }

 private:
  std::vector<int64_t> workers() const override { return hub_->workers_of_host(worker_); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    ++allocations_;
    return hub_->allocate(worker_, bytes);
  }
  uint64_t calls() const override { return allocations_; }

  uint64_t unused() const override { return windows_.unused(); }
  void open(uint64_t window, std::vector<std::span<std::byte>> memory, std::shared_ptr<void> owner) override {
    internal::require_one_for_each_worker(memory.size(), memory.size(), hub_->size());
    windows_.open(window, std::move(memory), std::move(owner));
  }
  void close(uint64_t window) noexcept override { windows_.close(window); }
  void put(uint64_t window, int64_t worker, std::size_t offset, Bytes bytes) override {
    hub_->put(worker, {window, worker_, offset, std::move(bytes)});
  }
  void progress() noexcept override try {
    const std::string problem = hub_->bring(worker_, windows_);
    if (!problem.empty()) hub_->abort(worker_, problem);
  } catch (const std::exception& error) {
    hub_->abort(worker_, error.what());
  }
  uint64_t arrived(uint64_t window, int64_t worker) const override { return windows_.arrived(window, worker); }

  const std::shared_ptr<Hub> hub_;
  const int64_t worker_;
  uint64_t allocations_ = 0;
  internal::WindowTable windows_;
};

}  // namespace

ThreadWorkers::ThreadWorkers(int64_t workers, std::chrono::milliseconds patience, std::vector<int64_t> hosts)
    : ThreadWorkers(workers, WorkerTimeouts{.patience = patience}, std::move(hosts)) {}

ThreadWorkers::ThreadWorkers(int64_t workers, const WorkerTimeouts& timeouts, std::vector<int64_t> hosts) {
  if (workers < 1) {
    throw UsageError("LS-OPTION", fmt::format("{} workers were asked for", workers), "ask for at least one");
  }
  if (!hosts.empty() && static_cast<int64_t>(hosts.size()) != workers) {
    throw UsageError("LS-OPTION", fmt::format("hosts of {} workers were given for {}", hosts.size(), workers),
                     "give the host of each worker, or none");
  }
  internal::warm_up_math();  // the program starts a thread for each of them
  hub_ = std::make_shared<Hub>(workers, timeouts, std::move(hosts));
}

ThreadWorkers::~ThreadWorkers() = default;

int64_t ThreadWorkers::size() const { return hub_->size(); }

std::shared_ptr<World> ThreadWorkers::world(int64_t index) const {
  if (index < 0 || index >= size()) {
    throw UsageError("LS-OPTION", fmt::format("worker {} of {} was asked for", index, size()),
                     fmt::format("choose a worker from 0 to {}", size() - 1));
  }
  return std::make_shared<ThreadWorld<Hub>>(hub_, index);
}

}  // namespace lockstep
