// Conformance of worlds: which calls meet, and what agree() returns.
#include <array>

#include "lockstep/testing/worlds/world_job.h"

namespace lockstep::internal::inline testing {

namespace {

using std::chrono::microseconds;

/// The record of one worker in one round: any bytes, zeros too.
std::string record_of(int64_t worker, uint64_t round, std::size_t size) {
  Random random(round * 64 + static_cast<uint64_t>(worker));
  std::string record(size, '\0');
  for (char& c : record) c = static_cast<char>(random.below(256));
  return record;
}

/// `size(worker)` is the size of each worker's record in this round.
template <class Size>
void expect_agreement(Worker& self, uint64_t round, const Size& size) {
  const auto records = self.agree(record_of(self.index(), round, size(self.index())));
  expect_equal("the number of records that agree() returns", static_cast<int64_t>(records.size()), self.workers());
  for (int64_t w = 0; w < self.workers(); ++w) {
    const std::string& record = records[static_cast<std::size_t>(w)];
    expect_equal(fmt::format("the size of worker {}'s record, read by worker {} in round {},", w, self.index(), round),
                 record.size(), size(w));
    expect(record == record_of(w, round, size(w)),
           fmt::format("worker {} got another record of worker {} than that of round {}", self.index(), w, round));
  }
}

void indices(const Trial& trial) {
  Job job(trial);
  job.run([&](Worker& self) {
    expect_equal(fmt::format("worker_index() of worker {}", self.index()), self.world().worker_index(), self.index());
    expect_equal("num_workers()", self.world().num_workers(), trial.workers);
  });
}

void records(const Trial& trial) {
  static constexpr std::array<std::size_t, 8> kSizes{0, 1, 2000, 65536, 7, 0, 4096, 255};
  Job job(trial);
  job.run([](Worker& self) {
    for (uint64_t round = 0; round < 2 * kSizes.size(); ++round) {
      // All of one size, then each of another.
      const bool different = round >= kSizes.size();
      expect_agreement(self, round, [&](int64_t worker) {
        return kSizes[(round + (different ? static_cast<std::size_t>(worker) : 0)) % kSizes.size()];
      });
    }
  });
}

void order(const Trial& trial) {
  Job job(trial);
  job.run([](Worker& self) {
    Random random(static_cast<uint64_t>(self.index()) + 1);
    for (uint64_t round = 0; round < 2000; ++round) {
      // Now and then another worker is late, and one that is early must not overtake it.
      if (random.below(8) == 0) linger(random, microseconds(200));
      expect_agreement(self, round, [](int64_t) { return std::size_t{12}; });
    }
  });
}

/// A job in which all workers draw the same calls.
void any_calls(Worker& self, uint64_t seed, uint64_t rounds) {
  Random shared(seed);
  Random own(seed * 64 + static_cast<uint64_t>(self.index()) + 1);
  for (uint64_t i = 0; i < rounds; ++i) {
    const uint64_t round = seed * rounds + i;
    const auto largest = int64_t{1} << shared.below(16);
    const auto size = [&](int64_t from, int64_t to) {
      return static_cast<std::size_t>(Random(round * 4096 + static_cast<uint64_t>(from * 64 + to)).below(largest));
    };
    if (own.below(8) == 0) linger(own, microseconds(200));
    if (shared.below(2) == 0) {
      expect_agreement(self, round, [&](int64_t worker) { return size(worker, worker) % 3000; });
    } else {
      Messages(self, {.size = size}, round).exchange(self);
    }
  }
}

void mixed(const Trial& trial) {
  Job job(trial);
  job.run([](Worker& self) { any_calls(self, 1, 300); });
}

void two_jobs(const Trial& trial) {
  Job first(trial);
  Job second(trial, {}, " of the second job");
  second.start([](Worker& self) { any_calls(self, 2, 150); });
  Latch begun(trial, trial.workers);
  first.run([&](Worker& self) {
    any_calls(self, 3, 50);
    self.begin(begun);
    const auto error = self.error_of("agree()", [&] {
      if (self.index() == 0) self.abort("only the first job");
      for (int calls = 0; calls < 2; ++calls) self.agree("aborted");
    });
    self.expect_names(error, 0, "only the first job");
  });
  second.finish();
  second.run([](Worker& self) { any_calls(self, 4, 20); });
}

constexpr const char* kMeeting =
    "the n-th call of one worker meets the n-th call of each other, whatever the call is and whoever comes first";

constexpr std::array<WorldCheck, 5> kWorldCallChecks{{
    {"WorldsKnowTheirIndexAndTheirNumber", indices, "look at what .make gives: [i] is the world of worker i"},
    {"AgreeGivesEveryRecordByWorker", records, "a record is any bytes, also none; the result is in worker order"},
    {"TheNthCallMeetsTheNthOfAllOthers", order, kMeeting},
    {"AgreementsAndExchangesMayAlternate", mixed, kMeeting},
    {"TwoJobsDoNotMix", two_jobs, "a job's worlds share nothing with those of another job: names, ports, files"},
}};

}  // namespace

std::span<const WorldCheck> world_call_checks() { return kWorldCallChecks; }

}  // namespace lockstep::internal::testing
