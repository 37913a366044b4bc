// Conformance of worlds: memory that all workers of a host map. A world without it has nothing to keep here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/host_memory.h"
#include "lockstep/testing/worlds/world_job.h"

namespace lockstep::internal::inline testing {

namespace {

constexpr std::array<std::size_t, 6> kSizes{1, 63, 4096, 4097, 65536, 1000003};

/// A byte that worker `worker` writes at `at` of piece `piece`.
std::byte pattern(int64_t worker, std::size_t piece, std::size_t at) {
  return static_cast<std::byte>(1 + (static_cast<std::size_t>(worker) * 31 + piece * 7 + at) % 251);
}

/// Which of them writes a byte of a piece: each writes bytes of its own.
int64_t writer_of(const std::vector<int64_t>& workers, std::size_t at) { return workers[at % workers.size()]; }

void expect_byte(std::byte found, std::byte expected, std::size_t piece, std::size_t at) {
  if (found == expected) return;
  throw Finding(fmt::format("byte {} of piece {} is {}, and {} was written", at, piece, static_cast<int>(found),
                            static_cast<int>(expected)));
}

void all_or_none(const Trial& trial) {
  Job job(trial);
  job.run([](Worker& self) {
    const auto all = self.agree(self.world().host_memory() ? "has" : "has none");
    for (const std::string& one : all)
      expect(one == all.front(), "some workers have memory of the host, and others have none");
  });
}

/// Each worker is among those of its own host, in ascending order, and all of these name the same workers.
void hosts_fit_together(const Trial& trial) {
  Job job(trial);
  job.run([](Worker& self) {
    const HostMemory* const memory = self.world().host_memory();
    std::vector<int64_t> mine;
    if (memory) mine = memory->workers();
    const auto all = self.agree(fmt::format("{}", fmt::join(mine, ",")));
    if (!memory) return;
    expect(std::is_sorted(mine.begin(), mine.end()), "workers() is not in ascending order");
    expect(std::count(mine.begin(), mine.end(), self.index()) == 1, "workers() does not have this worker once");
    for (const int64_t w : mine) {
      expect(w >= 0 && w < self.workers(), fmt::format("workers() has {}", w));
      expect(all[static_cast<std::size_t>(w)] == all[static_cast<std::size_t>(self.index())],
             fmt::format("workers() is {} on worker {}, and {} on worker {}", all[static_cast<std::size_t>(w)], w,
                         all[static_cast<std::size_t>(self.index())], self.index()));
    }
  });
}

/// On a host, the n-th piece of each worker is the n-th piece of all, it is zero at first, and no two pieces overlap.
void same_for_all(const Trial& trial) {
  Job job(trial);
  job.run([](Worker& self) {
    HostMemory* const memory = self.world().host_memory();
    if (!memory) return;
    const std::vector<int64_t> workers = memory->workers();
    std::vector<std::shared_ptr<std::byte>> pieces;
    for (const std::size_t size : kSizes) {
      pieces.push_back(memory->allocate(size));
      const auto address = reinterpret_cast<std::uintptr_t>(pieces.back().get());
      expect(address % 4096 == 0, fmt::format("a piece of {} bytes begins at {:x}", size, address));
      for (std::size_t at = 0; at < size; ++at) expect_byte(pieces.back().get()[at], {}, pieces.size() - 1, at);
    }
    self.agree("nobody writes before all have looked");
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      for (std::size_t at = 0; at < kSizes[p]; ++at) {
        if (writer_of(workers, at) == self.index()) pieces[p].get()[at] = pattern(self.index(), p, at);
      }
    }
    self.agree("all have written");
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      for (std::size_t at = 0; at < kSizes[p]; ++at) {
        expect_byte(pieces[p].get()[at], pattern(writer_of(workers, at), p, at), p, at);
      }
    }
    self.agree("all have read");
  });
}

/// What one worker of a host receives into it in exchange(), the others read as soon as that has returned to them.
void has_what_one_receives(const Trial& trial) {
  constexpr std::size_t kSize = std::size_t{1} << 20;
  Job job(trial);
  job.run([](Worker& self) {
    HostMemory* const memory = self.world().host_memory();
    if (!memory) return;
    const std::vector<int64_t> workers = memory->workers();
    const auto place = memory->allocate(kSize);
    const auto others = static_cast<std::size_t>(self.workers());
    for (std::size_t turn = 0; turn < 10; ++turn) {
      // Worker `sender` sends to one worker of each host, which has it in the memory of its host.
      const auto sender = static_cast<int64_t>(turn % others);
      const std::vector<std::byte> sent(kSize, pattern(sender, turn, 0));
      std::vector<std::span<const std::byte>> to(others);
      std::vector<std::span<std::byte>> from(others);
      const auto receives = [&](const std::vector<int64_t>& of_host) { return writer_of(of_host, turn); };
      const auto told = self.agree(fmt::format("{}", receives(workers)));
      if (self.index() == sender) {
        for (const std::string& one : told) {
          const auto w = static_cast<std::size_t>(std::stoll(one));
          if (static_cast<int64_t>(w) != sender) to[w] = sent;
        }
      }
      const bool is_receiver = receives(workers) == self.index() && self.index() != sender;
      if (is_receiver) from[static_cast<std::size_t>(sender)] = {place.get(), kSize};
      self.world().exchange(to, from);
      if (receives(workers) != sender) {
        for (const std::size_t at : {std::size_t{0}, kSize / 2, kSize - 1})
          expect_byte(place.get()[at], pattern(sender, turn, 0), turn, at);
      }
      self.agree("all have read");
    }
  });
}

/// What one worker lets go of stays for the others, also when its world is gone.
void stays_for_others(const Trial& trial) {
  Job job(trial);
  Latch left(trial, trial.workers - 1);
  job.run([&](Worker& self) {
    HostMemory* const memory = self.world().host_memory();
    if (!memory) return;
    constexpr std::size_t kSize = 100'000;
    auto first = memory->allocate(kSize);
    auto second = memory->allocate(kSize);
    if (self.index() == 0) std::fill_n(first.get(), kSize, std::byte{5});
    self.agree("worker 0 has written");
    if (self.index() == 0) {
      self.leave();
      self.wait(left);
      for (std::size_t at = 0; at < kSize; ++at) expect_byte(first.get()[at], std::byte{5}, 0, at);
    } else {
      first.reset();
      second.reset();
      left.count_down();
    }
  });
}

/// Memory that all have let go of is not given again with old bytes in it, and calls go on to fit together.
void zero_again(const Trial& trial) {
  Job job(trial);
  job.run([](Worker& self) {
    HostMemory* const memory = self.world().host_memory();
    if (!memory) return;
    const std::vector<int64_t> workers = memory->workers();
    for (int turn = 0; turn < 20; ++turn) {
      const auto size = static_cast<std::size_t>(1000 * (turn % 5 + 1));
      const auto piece = memory->allocate(size);
      for (std::size_t at = 0; at < size; ++at) expect_byte(piece.get()[at], {}, 0, at);
      self.agree("all have looked");
      if (writer_of(workers, static_cast<std::size_t>(turn)) == self.index())
        std::fill_n(piece.get(), size, std::byte{9});
      self.agree("one has written");
      expect_byte(piece.get()[size - 1], std::byte{9}, 0, size - 1);
      if (turn % 2 == 0) self.agree("all have read");
    }
  });
}

constexpr const char* kLook = "HostMemory::allocate gives all workers of a host the same new memory, call by call";

constexpr std::array<WorldCheck, 6> kWorldMemoryChecks{{
    {"AllOrNoneHaveMemoryOfTheHost", all_or_none, "host_memory() is null on all workers, or on none"},
    {"WorkersOfAHostNameTheSameWorkers", hosts_fit_together, "HostMemory::workers() is the same for all that it names"},
    {"MemoryOfTheHostIsTheSameForAll", same_for_all, kLook},
    {"MemoryOfTheHostHasWhatAWorkerReceivesIntoIt", has_what_one_receives,
     "what a worker receives into the memory of its host is there for the others when exchange() has returned to them"},
    {"MemoryOfTheHostStaysWhileAnyWorkerHasIt", stays_for_others, "memory lives as long as any pointer to it"},
    {"MemoryOfTheHostIsZeroAtFirst", zero_again, kLook},
}};

}  // namespace

std::span<const WorldCheck> world_memory_checks() { return kWorldMemoryChecks; }

}  // namespace lockstep::internal::testing
