// Conformance of worlds: which bytes an exchange moves, and what it leaves alone.
#include <algorithm>
#include <array>

#include "lockstep/testing/worlds/world_job.h"

namespace lockstep::internal::inline testing {

namespace {

std::size_t size_of(uint64_t value) { return static_cast<std::size_t>(value); }

/// Each pair of workers exchanges messages of each size, in each round another one.
void sizes(const Trial& trial) {
  static constexpr std::array<int64_t, 20> kSizes{
      0, 1, 2, 3, 7, 8, 63, 64, 65, 1500, 4095, 4096, 4097, 65535, 65536, 65537, 262143, 262144, 1048576, 1048577};
  Job job(trial);
  job.run([&](Worker& self) {
    for (uint64_t round = 0; round < kSizes.size(); ++round) {
      const auto size = [&](int64_t from, int64_t to) {
        const auto which = (round + size_of(static_cast<uint64_t>(7 * from + 3 * to))) % kSizes.size();
        return static_cast<std::size_t>(std::min(kSizes[which], trial.conformance->largest_bytes));
      };
      Messages(self, {.size = size}, round).exchange(self);
    }
  });
}

/// The largest message goes from the first worker to the last and back, and small ones pass at the same time.
void largest(const Trial& trial) {
  const int64_t most = trial.conformance->largest_bytes;
  for (const int64_t bytes : {most / 8, most - 1, most}) {
    Job job(trial);
    job.run([&](Worker& self) {
      const int64_t last = self.workers() - 1;
      const auto size = [&](int64_t from, int64_t to) {
        const bool large = (from == 0 && to == last) || (from == last && to == 0);
        return static_cast<std::size_t>(std::max<int64_t>(large ? bytes : std::min<int64_t>(most, 100 + from), 0));
      };
      Messages(self, {.size = size}, 1).exchange(self);
    });
  }
}

void one_way(const Trial& trial) {
  Job job(trial);
  job.run([&](Worker& self) {
    for (uint64_t round = 0; round < 12; ++round) {
      const auto sender = static_cast<int64_t>(round) % self.workers();
      const auto size = [&](int64_t from, int64_t) {
        return static_cast<std::size_t>(
            round < 8 && from == sender ? std::min<int64_t>(300'001, trial.conformance->largest_bytes) : 0);
      };
      Messages(self, {.size = size}, round).exchange(self);
    }
  });
}

void alignment(const Trial& trial) {
  Job job(trial);
  job.run([](Worker& self) {
    for (std::size_t offset = 1; offset < 64; ++offset) {
      for (const int64_t bytes : {1, 64, 5001}) {
        const Messages::Shape shape{
            .size = [&](int64_t from, int64_t to) { return static_cast<std::size_t>(bytes + from + 2 * to); },
            .to_offset = offset,
            .from_offset = (offset * 29 + size_of(static_cast<uint64_t>(self.index()))) % 64};
        Messages(self, shape, offset).exchange(self);
      }
    }
  });
}

/// Spans of the worker itself point nowhere; empty ones are null.
void own_entries(const Trial& trial) {
  Job job(trial);
  job.run([](Worker& self) {
    for (uint64_t round = 0; round < 20; ++round) {
      const auto size = [&](int64_t from, int64_t to) {
        return size_of(round % 2 * 50) * size_of((from + to) % 3 == 0);
      };
      Messages messages(self, {.size = size}, round);
      auto to = messages.to();
      auto from = messages.from();
      for (auto& bytes : to) bytes = bytes.empty() ? std::span<const std::byte>() : bytes;
      for (auto& bytes : from) bytes = bytes.empty() ? std::span<std::byte>() : bytes;
      const auto me = static_cast<std::size_t>(self.index());
      auto* const nowhere = reinterpret_cast<std::byte*>(std::uintptr_t{64});
      to[me] = {nowhere, 4000};
      from[me] = {nowhere, 3};
      self.exchange(to, from);
      messages.expect_received();
      messages.expect_untouched();
    }
  });
}

void one_buffer(const Trial& trial) {
  Job job(trial);
  job.run([&](Worker& self) {
    for (uint64_t round = 0; round < 10; ++round) {
      const auto size = [&](int64_t from, int64_t) {
        return static_cast<std::size_t>(std::min<int64_t>(40'000 * (from + 1), trial.conformance->largest_bytes));
      };
      Messages(self, {.size = size, .same_for_all = true}, round).exchange(self);
    }
  });
}

/// The memory of a call is used again at once, and watched during the calls that follow.
void memory_afterwards(const Trial& trial) {
  Job job(trial);
  job.run([&](Worker& self) {
    Random random(static_cast<uint64_t>(self.index()));
    std::vector<Messages> used;
    for (uint64_t round = 0; round < 60; ++round) {
      const auto size = [&](int64_t from, int64_t to) {
        const auto bytes = Random(round * 4096 + static_cast<uint64_t>(from * 64 + to)).below(100'000);
        return static_cast<std::size_t>(std::min(bytes, trial.conformance->largest_bytes));
      };
      Messages messages(self, {.size = size}, round);
      messages.exchange(self);
      messages.reuse();
      used.push_back(std::move(messages));
      if (random.below(4) == 0) linger(random, std::chrono::microseconds(300));
      if (used.size() < 4) continue;
      for (const Messages& earlier : used) earlier.expect_reused();
      used.clear();  // freed: a late access is found by tools that watch freed memory
    }
  });
}

constexpr const char* kBytes = "from[w] is what worker w gave as to[this worker], for sizes that differ for each pair";
constexpr const char* kMemory =
    "an exchange writes the bytes of from[w] alone, and reads and writes nothing after it has returned";

constexpr std::array<WorldCheck, 7> kWorldExchangeChecks{{
    {"ExchangeMovesMessagesOfAllSizes", sizes, kBytes},
    {"ExchangeMovesTheLargestMessages", largest, kBytes},
    {"ExchangeMovesMessagesOfOneWorkerToAll", one_way, "a worker may have nothing to send, or nothing to receive"},
    {"ExchangeMovesBytesAtAnyAddress", alignment, kMemory},
    {"ExchangeIgnoresTheEntriesOfTheWorkerItself", own_entries, "to[w] and from[w] of worker w itself may be anything"},
    {"OneBufferMayGoToAllWorkers", one_buffer, "the spans of `to` may overlap: they are only read"},
    {"MemoryIsTheCallersAgainWhenAnExchangeReturns", memory_afterwards, kMemory},
}};

}  // namespace

std::span<const WorldCheck> world_exchange_checks() { return kWorldExchangeChecks; }

}  // namespace lockstep::internal::testing
