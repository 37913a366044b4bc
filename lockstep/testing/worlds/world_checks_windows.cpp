// Conformance of worlds: bytes that are put into windows. A world without windows has nothing to keep here.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/windows.h"
#include "lockstep/testing/worlds/world_job.h"

namespace lockstep::internal::inline testing {

namespace {

constexpr std::size_t kGuard = 64;
constexpr std::byte kUntouched{0xA5};

/// A byte that `from` puts at `at` of the memory that `to` has for it.
std::byte pattern(int64_t from, int64_t to, uint64_t round, std::size_t at) {
  return static_cast<std::byte>((static_cast<uint64_t>(from) * 31 + static_cast<uint64_t>(to) * 7 + round * 13 + at) %
                                251);
}

/// A window of one worker, with so many bytes for each other one, between guards.
class Opened {
 public:
  Opened(const Worker& self, uint64_t window, std::size_t bytes)
      : windows_(*self.world().windows()), window_(window), bytes_(bytes) {
    const auto workers = static_cast<std::size_t>(self.workers());
    memory_ = std::make_shared<std::vector<std::byte>>(workers * (bytes + 2 * kGuard), kUntouched);
    std::vector<std::span<std::byte>> places;
    for (int64_t w = 0; w < self.workers(); ++w) places.push_back(of(w));
    windows_.open(window, places, memory_);
  }

  /// The memory for a worker.
  std::span<std::byte> of(int64_t worker) const {
    const std::size_t begin = static_cast<std::size_t>(worker) * (bytes_ + 2 * kGuard) + kGuard;
    return std::span(*memory_).subspan(begin, bytes_);
  }
  void expect_guards(int64_t workers) const {
    for (int64_t w = 0; w < workers; ++w) {
      for (std::size_t at = 0; at < kGuard; ++at) {
        const bool sound = *(of(w).data() - 1 - at) == kUntouched && *(of(w).data() + bytes_ + at) == kUntouched;
        expect(sound, fmt::format("a byte beside the memory for worker {} was written", w));
      }
    }
  }
  uint64_t arrived(int64_t worker) const { return windows_.arrived(window_, worker); }
  void close() { windows_.close(window_); }

 private:
  Windows& windows_;
  const uint64_t window_;
  const std::size_t bytes_;
  std::shared_ptr<std::vector<std::byte>> memory_;
};

/// The bytes that this worker puts into the memory of another one.
std::shared_ptr<std::vector<std::byte>> bytes_for(const Worker& self, int64_t other, uint64_t round,
                                                  std::size_t count) {
  auto bytes = std::make_shared<std::vector<std::byte>>(count);
  for (std::size_t at = 0; at < count; ++at) (*bytes)[at] = pattern(self.index(), other, round, at);
  return bytes;
}

/// Requires that `got` is what `from` put for `to` in this round. A text is made for a wrong byte only: there are
/// millions.
void expect_arrived(std::span<const std::byte> got, int64_t from, int64_t to, uint64_t round) {
  for (std::size_t at = 0; at < got.size(); ++at) {
    if (got[at] == pattern(from, to, round, at)) continue;
    throw Finding(fmt::format("byte {} of {} that worker {} put is another one", at, got.size(), from));
  }
}

void all_or_none(const Trial& trial) {
  Job job(trial);
  job.run([](Worker& self) {
    const auto all = self.agree(self.world().windows() ? "has" : "has none");
    for (const std::string& one : all) expect(one == all.front(), "some workers have windows, and others have none");
  });
}

/// The call after which all puts are there.
void exchange_after_puts(Worker& self, uint64_t round) {
  Messages(self, {.size = [](int64_t from, int64_t) { return static_cast<std::size_t>(100 * from); }}, round)
      .exchange(self);
}

/// In each round all put bytes into the windows of all, in pieces; some look after them meanwhile, and others do not.
void before_the_next_exchange(const Trial& trial) {
  static constexpr std::array<std::size_t, 9> kSizes{1, 7, 1000, 16'000, 65'537, 300'001, 0, 3, 1'000'003};
  Job job(trial);
  job.run([&](Worker& self) {
    Windows* const windows = self.world().windows();
    if (!windows) return;
    Random random(static_cast<uint64_t>(self.index()));
    for (uint64_t round = 1; round <= kSizes.size(); ++round) {
      const auto size =
          std::min<std::size_t>(kSizes[round - 1], static_cast<std::size_t>(trial.conformance->largest_bytes) / 2);
      Opened opened(self, round, size);
      self.agree("all have opened it");
      std::vector<std::shared_ptr<std::vector<std::byte>>> bytes_of;
      for (int64_t other = 0; other < self.workers(); ++other) bytes_of.push_back(bytes_for(self, other, round, size));
      constexpr std::size_t kPieces = 5;
      for (std::size_t piece = 0; piece < kPieces; ++piece) {
        for (int64_t other = 0; other < self.workers(); ++other) {
          if (other == self.index()) continue;
          const auto& bytes = bytes_of[static_cast<std::size_t>(other)];
          const std::size_t begin = size * piece / kPieces;
          const std::size_t end = size * (piece + 1) / kPieces;
          windows->put(round, other, begin, {std::span(*bytes).subspan(begin, end - begin), bytes});
        }
        if (random.below(2) == 0) windows->progress();
        if (random.below(4) == 0) linger(random, std::chrono::microseconds(200));
      }
      if (round % 2 == 0) self.agree("after the puts");
      exchange_after_puts(self, round);
      for (int64_t other = 0; other < self.workers(); ++other) {
        if (other == self.index()) continue;
        expect(opened.arrived(other) == kPieces,
               fmt::format("{} of {} puts of worker {} have arrived", opened.arrived(other), kPieces, other));
        expect_arrived(opened.of(other), other, self.index(), round);
      }
      opened.expect_guards(self.workers());
      opened.close();
      self.agree("all have looked");
    }
  });
}

/// One worker puts more than any buffer holds, while the one whose memory it is waits in agree().
void hold_up_no_agreement(const Trial& trial) {
  if (trial.workers < 2) return;
  const auto size =
      std::min<std::size_t>(std::size_t{24} << 20, static_cast<std::size_t>(trial.conformance->largest_bytes));
  Job job(trial);
  job.run([&](Worker& self) {
    Windows* const windows = self.world().windows();
    if (!windows) return;
    Opened opened(self, 1, self.index() == 1 ? size : 1);
    self.agree("all have opened it");
    if (self.index() == 0) {
      const auto bytes = bytes_for(self, 1, 0, size);
      windows->put(1, 1, 0, {*bytes, bytes});
    }
    self.agree("after the put");
    self.agree("and once more");
    exchange_after_puts(self, 1);
    if (self.index() == 1) expect_arrived(opened.of(0), 0, 1, 0);
    opened.expect_guards(self.workers());
    self.agree("all have looked");
  });
}

/// Later puts of a worker lie over its earlier ones.
void in_their_order(const Trial& trial) {
  Job job(trial);
  job.run([](Worker& self) {
    Windows* const windows = self.world().windows();
    if (!windows) return;
    constexpr std::size_t kSize = 40'000;
    constexpr uint64_t kPuts = 20;
    Opened opened(self, 1, kSize);
    Random random(static_cast<uint64_t>(self.index()));
    for (int turn = 0; turn < 20; ++turn) {  // the others may be in their first call
      linger(random, std::chrono::microseconds(100));
      windows->progress();
    }
    self.agree("all have opened it");
    for (uint64_t k = 0; k < kPuts; ++k) {
      for (int64_t other = 0; other < self.workers(); ++other) {
        if (other == self.index()) continue;
        const auto bytes = bytes_for(self, other, k, kSize);
        windows->put(1, other, 0, {*bytes, bytes});
      }
    }
    exchange_after_puts(self, 1);
    for (int64_t other = 0; other < self.workers(); ++other) {
      if (other == self.index()) continue;
      const std::span<const std::byte> got = opened.of(other);
      for (std::size_t at = 0; at < kSize; ++at) {
        expect(got[at] == pattern(other, self.index(), kPuts - 1, at), "an earlier put lies over a later one");
      }
    }
    self.agree("all have looked");
  });
}

/// What is put into a window that the other one has not opened, or has closed, changes nothing.
void lost_where_closed(const Trial& trial) {
  Job job(trial);
  job.run([](Worker& self) {
    Windows* const windows = self.world().windows();
    if (!windows) return;
    constexpr std::size_t kSize = 200'000;
    Opened opened(self, 1, kSize);
    if (self.index() == 0) opened.close();
    self.agree("worker 0 has closed it");
    for (int64_t other = 0; other < self.workers(); ++other) {
      if (other == self.index()) continue;
      const auto bytes = bytes_for(self, other, 0, kSize);
      windows->put(1, other, 0, {*bytes, bytes});
      windows->put(77, other, 5, {*bytes, bytes});
    }
    exchange_after_puts(self, 1);
    for (int64_t other = 0; other < self.workers(); ++other) {
      if (other == self.index()) continue;
      const bool is_lost = self.index() == 0;
      for (std::size_t at = 0; at < kSize; ++at) {
        const std::byte expected = is_lost ? kUntouched : pattern(other, self.index(), 0, at);
        expect(opened.of(other)[at] == expected, is_lost ? "a closed window was written" : "a put did not arrive");
      }
    }
    opened.expect_guards(self.workers());
    self.agree("all have looked");
  });
}

void no_room(const Trial& trial) {
  for (const std::size_t offset : {std::size_t{0}, std::size_t{51}, std::size_t{101}, ~std::size_t{0} - 10}) {
    Latch begun(trial, trial.workers);
    Job job(trial);
    job.run([&](Worker& self) {
      Windows* const windows = self.world().windows();
      if (!windows) return;
      Opened opened(self, 1, 100);
      self.begin(begun);
      if (self.index() == 1) {
        const auto bytes = bytes_for(self, 0, 0, offset == 0 ? 101 : 50);
        windows->put(1, 0, offset, {*bytes, bytes});
      }
      const PeerError error = self.error_of("exchange() after a put that has no room", [&] {
        exchange_after_puts(self, 1);
        exchange_after_puts(self, 2);
      });
      opened.expect_guards(self.workers());
      self.expect_over(error);
    });
  }
}

constexpr const char* kArrive = "what is put before an exchange is in the other's memory when that has returned there";

constexpr std::array<WorldCheck, 6> kWorldWindowChecks{{
    {"AllOrNoneHaveWindows", all_or_none, "windows() is null on all workers, or on none"},
    {"PutsArriveBeforeTheNextExchangeReturns", before_the_next_exchange, kArrive},
    {"PutsHoldUpNoAgreement", hold_up_no_agreement, "agree() waits for no put, whoever comes first"},
    {"PutsOfAWorkerArriveInTheirOrder", in_their_order, "the puts of one worker arrive in their order"},
    {"PutsIntoClosedWindowsAreLost", lost_where_closed, "bytes for a window that is not open are read and dropped"},
    {"PutsWithoutRoomEndTheRun", no_room, "bytes are compared with the memory's size before they are written"},
}};

}  // namespace

std::span<const WorldCheck> world_window_checks() { return kWorldWindowChecks; }

}  // namespace lockstep::internal::testing
