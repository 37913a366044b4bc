// What the checks of worlds are made of: a job whose workers are threads, the messages that they exchange, and what
// each worker is doing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/testing/finding.h"
#include "lockstep/testing/world_conformance.h"
#include "lockstep/testing/worlds/world_process.h"

namespace lockstep::internal::inline testing {

/// What each worker of a check is doing. It outlives a check that hangs. Every member may be called on any thread.
class Activity {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// From now on `who` ("worker 2") does `what` ("is in agree()"). `call` counts its calls.
  void note(const std::string& who, const char* what, int64_t call);
  /// `who` has thrown `found`. The first one is kept: the check hangs because of it, if it hangs.
  void note_thrown(const std::string& who, const std::exception_ptr& found);
  /// When something was noted last.
  Time latest() const;
  /// "worker 0 is in agree() for 3.1 s, its call 17; worker 1 has ended"
  std::string text() const;

 private:
  struct State {
    const char* what;
    int64_t call;
    Time since;
  };
  mutable std::mutex mutex_;
  std::map<std::string, State> all_;
  std::string thrown_;
  Time latest_ = std::chrono::steady_clock::now();
};

/// What a check gets: how worlds are made, for how many workers, and where to say what they are doing.
struct Trial {
  std::shared_ptr<const lockstep::testing::WorldConformance> conformance;
  int64_t workers = 2;
  std::shared_ptr<Activity> activity = std::make_shared<Activity>();
  /// Where workers are processes: the one that runs this. Null where they are threads, and then `.make` makes worlds.
  std::shared_ptr<OwnProcess> process = {};
};

/// A claim about worlds. `run` throws where it does not hold.
struct WorldCheck {
  const char* name;  // letters and digits
  void (*run)(const Trial& trial);
  const char* look_at;  // the one thing to do where it fails
};

std::span<const WorldCheck> world_call_checks();      // who meets whom, and what agree() returns
std::span<const WorldCheck> world_exchange_checks();  // which bytes arrive, and what stays untouched
std::span<const WorldCheck> world_failure_checks();   // calls that do not fit, and abort()
std::span<const WorldCheck> world_memory_checks();    // memory that the workers of a host map
std::span<const WorldCheck> world_window_checks();    // bytes that are put into windows
std::span<const WorldCheck> world_end_checks();       // workers that leave or do not come, and what is left of worlds

/// All of them, in the order in which they run.
std::vector<WorldCheck> all_world_checks();
/// Runs a check, and ends with a DivergenceError where the claim does not hold, or where nothing happens for too long.
void run_world_check(const Trial& trial, const WorldCheck& check);

/// Numbers that look random and are the same in each run.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  /// From 0 to `end` - 1.
  int64_t below(int64_t end) { return static_cast<int64_t>(next() % static_cast<uint64_t>(end)); }

 private:
  uint64_t state_;
};

/// Delays this thread by a random time of at most so long: it computes, and lets other threads run in between.
void linger(Random& random, std::chrono::microseconds longest);

/// One worker of a job, on its thread.
class Worker {
 public:
  using To = std::span<const std::span<const std::byte>>;
  using From = std::span<const std::span<std::byte>>;

  /// Of `trial`; the world is null where the worker is another process.
  Worker(std::shared_ptr<World> world, int64_t index, std::string who, const Trial& trial);

  int64_t index() const { return index_; }
  int64_t workers() const { return workers_; }
  bool has_world() const { return world_ != nullptr; }
  World& world() const { return *world_; }

  std::vector<std::string> agree(const std::string& mine);
  void exchange(To to, From from);
  void abort(const std::string& reason) noexcept;
  /// Destroys the world.
  void leave();
  /// Makes a first call, and waits until it has returned everywhere. A failure that follows cannot reach that call.
  void begin(Latch& all);
  /// Waits for other threads of the check: for all that the latch counts.
  void arrive_and_wait(Latch& latch);
  void wait(Latch& latch);

  /// The PeerError of a call, with a code and the name of a worker in it. A Finding where the call throws anything
  /// else.
  PeerError error_of(const char* what, FunctionRef<void()> call) const;
  /// Requires that the error names the worker, and has `reason` in it.
  void expect_names(const PeerError& error, int64_t culprit, std::string_view reason = {}) const;
  /// Requires that further calls throw this error too.
  void expect_over(const PeerError& error);

  void note(const char* what) const { activity_->note(who_, what, calls_); }

 private:
  std::shared_ptr<World> world_;
  const int64_t index_;
  const int64_t workers_;
  const std::string who_;
  const std::shared_ptr<Activity> activity_;
  const std::shared_ptr<OwnProcess> process_;
  int64_t calls_ = 0;

  void note_failed_run() const {
    if (process_) process_->note_failed_run();
  }
};

/// New worlds, and a thread for each. Where workers are processes, one world and its thread.
class Job {
 public:
  /// `name` tells its workers from those of another job: "worker 2 of the second job".
  explicit Job(const Trial& trial, std::optional<std::chrono::milliseconds> patience = {}, const char* name = "");
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Begins `body` for each worker, on a thread of its own. Where a body throws, its world is aborted.
  void start(std::function<void(Worker&)> body);
  /// Waits for all threads, and throws what a body threw first. The worlds still exist.
  void finish();
  void run(std::function<void(Worker&)> body) {
    start(std::move(body));
    finish();
  }

  /// Destroys this worker's world, on this thread. Nobody goes on before it is destroyed.
  void leave(int64_t index);

 private:
  void join();

  const std::shared_ptr<Activity> activity_;
  const std::shared_ptr<OwnProcess> process_;
  bool is_skipped_ = false;  // earlier processes had it
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::exception_ptr thrown_;  // guarded by mutex_
};

/// The messages of one worker in one exchange. Each lies in memory of its own between guard bytes. The worker's own
/// entries are memory that nobody may use.
class Messages {
 public:
  struct Shape {
    /// The size of the message from one worker to another, which all workers know.
    std::function<std::size_t(int64_t from, int64_t to)> size;
    /// How far a message begins after an address that is a multiple of 64, at the sender and at the receiver.
    std::size_t to_offset = 0;
    std::size_t from_offset = 0;
    /// Where all messages that a worker sends are equal and lie at the same place.
    bool same_for_all = false;
  };
  /// `round` decides the bytes.
  Messages(const Worker& worker, const Shape& shape, uint64_t round);

  /// Exchanges them, and requires the right bytes and that nothing else was written.
  void exchange(Worker& worker);
  void expect_received() const;
  /// Requires that no guard byte, no byte to be sent and no own entry was written.
  void expect_untouched() const;
  /// Puts the memory to another use, as a caller may when its call is over.
  void reuse();
  /// Requires that nobody has written since.
  void expect_reused() const;

  /// Lets this worker expect so many bytes from another one, rather than what is sent.
  void expect_size(int64_t from, std::size_t size);
  /// The arguments of World::exchange.
  const std::vector<std::span<const std::byte>>& to() const { return to_; }
  const std::vector<std::span<std::byte>>& from() const { return from_; }

 private:
  /// Memory with guards at both ends.
  struct Memory {
    std::vector<std::byte> all;
    std::size_t begin = 0;
    std::size_t size = 0;
    std::span<std::byte> bytes() { return std::span(all).subspan(begin, size); }
    std::span<const std::byte> bytes() const { return std::span(all).subspan(begin, size); }
  };
  static Memory guarded(std::size_t size, std::size_t offset);
  static void expect_guards(const std::string& what, const Memory& memory);
  uint64_t key(int64_t from, int64_t to) const;

  const int64_t index_;
  const int64_t workers_;
  const uint64_t round_;
  const bool same_for_all_;
  std::vector<Memory> to_memory_;    // by worker; only the first where they are the same for all
  std::vector<Memory> from_memory_;  // by worker
  std::vector<std::span<const std::byte>> to_;
  std::vector<std::span<std::byte>> from_;
};

}  // namespace lockstep::internal::testing
