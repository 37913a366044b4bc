// Conformance of worlds: workers that leave or do not come, and what is left when all worlds are destroyed.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "lockstep/comm/host_memory.h"
#include "lockstep/testing/worlds/world_job.h"

namespace lockstep::internal::inline testing {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

enum class Call : uint8_t { kAgree, kExchange };

/// One call of one kind. Where it throws, the memory of its messages is freed at once.
void call(Worker& self, Call kind, std::size_t bytes = 1000) {
  if (kind == Call::kAgree) {
    self.agree(std::string(std::min<std::size_t>(bytes, 65536), 'x'));
  } else {
    Messages(self, {.size = [&](int64_t, int64_t) { return bytes; }}, 1).exchange(self);
  }
}

/// A worker that is gone is noticed, and not only missed: sooner than the patience ends.
void leaves(const Trial& trial, bool others_wait) {
  for (int64_t turn = 0; turn < std::max<int64_t>(trial.workers, 6); ++turn) {
    const int64_t culprit = turn % trial.workers;
    const Call kind = turn % 4 < 2 ? Call::kAgree : Call::kExchange;
    const auto bytes = static_cast<std::size_t>(std::min<int64_t>(trial.conformance->largest_bytes, 300'000));
    Latch ready(trial, trial.workers);
    Job job(trial);
    job.run([&](Worker& self) {
      Random random(static_cast<uint64_t>(turn));
      call(self, kind);
      if (self.index() == culprit) {
        if (others_wait) {
          self.arrive_and_wait(ready);
          linger(random, microseconds(1000));
        }
        self.leave();
        if (!others_wait) self.arrive_and_wait(ready);
        return;
      }
      if (others_wait) {
        ready.count_down();
      } else {
        self.arrive_and_wait(ready);
      }
      const auto begin = steady_clock::now();
      const PeerError error = self.error_of("a call after a worker has left", [&] { call(self, kind, bytes); });
      const auto waited = std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin);
      expect(waited < trial.conformance->patience,
             fmt::format("worker {} waited {} ms, all of its patience, for worker {}, which had left", self.index(),
                         waited.count(), culprit));
      self.expect_names(error, culprit);
      self.expect_over(error);
    });
  }
}

void leaves_while_others_wait(const Trial& trial) { leaves(trial, true); }
void has_left(const Trial& trial) { leaves(trial, false); }

/// The last call of a job returns everywhere, although some workers are done with it sooner and leave.
void leaves_after_last_call(const Trial& trial) {
  for (uint64_t turn = 0; turn < 40; ++turn) {
    Job job(trial);
    job.run([&](Worker& self) {
      const auto bytes = std::min<int64_t>(trial.conformance->largest_bytes, turn % 4 < 2 ? 10 : 400'000);
      Messages messages(self, {.size = [&](int64_t, int64_t) { return static_cast<std::size_t>(bytes); }}, turn);
      if (turn % 2 == 0) {
        messages.exchange(self);
      } else {
        self.agree(std::string(static_cast<std::size_t>(bytes % 65536), 'x'));
      }
      self.leave();
    });
  }
}

/// Nobody is given up before the patience ends, or long afterwards.
void does_not_come(const Trial& trial) {
  constexpr milliseconds kPatience(400);
  constexpr milliseconds kSlack(2000);
  for (int64_t turn = 0; turn < 4; ++turn) {
    const int64_t culprit = turn % 2 == 0 ? trial.workers - 1 : 0;
    const Call kind = turn < 2 ? Call::kAgree : Call::kExchange;
    Earliest first(trial);  // when the first worker began to wait
    Latch ready(trial, trial.workers);
    Latch over(trial, trial.workers);
    Job job(trial, kPatience);
    job.run([&](Worker& self) {
      self.arrive_and_wait(ready);
      if (self.index() == culprit) {
        self.arrive_and_wait(over);
        self.expect_names(self.error_of("a call that comes too late", [&] { call(self, kind); }), culprit);
        return;
      }
      const auto begin = steady_clock::now();
      first.add(begin);
      const std::exception_ptr found = thrown_by([&] { call(self, kind); });
      const auto end = steady_clock::now();
      over.count_down();
      const PeerError error = self.error_of("a call to which a worker does not come", [&] {
        if (found) std::rethrow_exception(found);
      });
      self.expect_names(error, culprit);
      const auto since_first = end - first.get();
      const auto in_ms = [](auto time) { return std::chrono::duration_cast<milliseconds>(time).count(); };
      expect(since_first >= kPatience, fmt::format("worker {} was given up after {} ms, with a patience of {} ms",
                                                   culprit, in_ms(since_first), kPatience.count()));
      expect(end - begin <= kPatience + kSlack, fmt::format("worker {} waited {} ms, with a patience of {} ms",
                                                            self.index(), in_ms(end - begin), kPatience.count()));
      self.expect_over(error);
    });
  }
}

void late(const Trial& trial) {
  const milliseconds patience(4000);
  Job job(trial, patience);
  job.run([&](Worker& self) {
    for (const Call kind : {Call::kAgree, Call::kExchange}) {
      if (self.index() == 0) {
        self.note("comes late, as the check wants it");
        std::this_thread::sleep_for(patience / 8);  // no synchronisation: the time is what is tested
      }
      call(self, kind);
    }
  });
}

/// Worlds are destroyed one by one, in one thread, in any order; after calls, after none, after failed ones.
void any_order(const Trial& trial) {
  for (uint64_t turn = 0; turn < 24; ++turn) {
    Random random(turn);
    std::vector<int64_t> order(static_cast<std::size_t>(trial.workers));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i], order[static_cast<std::size_t>(random.below(static_cast<int64_t>(i) + 1))]);
    }
    Latch begun(trial, trial.workers);
    Job job(trial);
    if (turn % 3 > 0) {
      job.run([&](Worker& self) {
        self.begin(begun);
        if (turn % 3 == 1) return;
        if (self.index() == 0) self.abort("to the end");
        self.error_of("exchange()", [&] { call(self, Call::kExchange); });
      });
    }
    for (const int64_t index : order) job.leave(index);
  }
}

/// What a process has that worlds may leave behind.
struct ProcessResources {
  int64_t threads = 0;
  int64_t files = 0;
  int64_t shared_mappings = 0;

  static ProcessResources now() {
    const auto entries = [](const char* folder) {
      return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
    };
    ProcessResources result{entries("/proc/self/task"), entries("/proc/self/fd"), 0};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      const auto rights = line.find(' ') + 1;  // "7f... rw-s ..."
      if (line.size() > rights + 3 && line[rights + 3] == 's') ++result.shared_mappings;
    }
    return result;
  }
  bool has_more_than(const ProcessResources& other) const {
    return threads > other.threads || files > other.files || shared_mappings > other.shared_mappings;
  }
  std::string text() const {
    return fmt::format("{} threads, {} open files and {} shared mappings", threads, files, shared_mappings);
  }
};

void nothing_left(const Trial& trial) {
  const auto live = [&](int turns) {
    for (int turn = 0; turn < turns; ++turn) {
      Latch begun(trial, trial.workers);
      Job job(trial);
      if (turn % 4 == 3) continue;  // also worlds that made no call
      job.run([&](Worker& self) {
        call(self, Call::kExchange);
        std::shared_ptr<std::byte> memory;
        if (HostMemory* const of_host = self.world().host_memory()) memory = of_host->allocate(10'000);
        self.begin(begun);
        if (turn % 4 != 1 || trial.process) return;  // processes may have one run that fails
        if (self.index() == 0) self.abort("to the end");
        self.error_of("exchange()", [&] { call(self, Call::kExchange); });
      });
    }
  };
  constexpr int kTurns = 36;
  live(4);  // what a process needs once may stay
  const ProcessResources before = ProcessResources::now();
  live(kTurns);
  // A thread that was joined may stand in /proc for a moment.
  ProcessResources after = ProcessResources::now();
  const auto end = steady_clock::now() + std::chrono::seconds(2);
  while (after.has_more_than(before) && steady_clock::now() < end) {
    std::this_thread::yield();
    after = ProcessResources::now();
  }
  expect(!after.has_more_than(before), fmt::format("the process has {} when {} jobs are over, and had {} before them",
                                                   after.text(), kTurns, before.text()));
}

constexpr const char* kGone = "whoever destroys a World leaves the run, and the calls of the others name that worker";
constexpr const char* kPatience = "a call waits for each other worker as long as .make was told, and then names it";

constexpr std::array<WorldCheck, 7> kWorldEndChecks{{
    {"AWorkerThatLeavesIsNamedToThoseWhoWait", leaves_while_others_wait, kGone},
    {"AWorkerThatHasLeftIsNamedToThoseWhoCallLater", has_left, kGone},
    {"AWorkerMayLeaveWhenItsLastCallHasReturned", leaves_after_last_call,
     "a World delivers what its calls have sent before it is gone"},
    {"AWorkerThatDoesNotComeIsNamedWhenThePatienceEnds", does_not_come, kPatience},
    {"ALateWorkerIsWaitedFor", late, kPatience},
    {"WorldsAreDestroyedInAnyOrder", any_order, "the destruction of a World waits for no other worker"},
    {"NothingIsLeftOfWorlds", nothing_left, "join the threads, close the files and unmap the memory of each World"},
}};

}  // namespace

std::span<const WorldCheck> world_end_checks() { return kWorldEndChecks; }

}  // namespace lockstep::internal::testing
