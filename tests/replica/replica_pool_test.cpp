#include "lockstep/replica/pool/replica_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::lanes;

LanePlan plan_of(int64_t replicas, int num_lanes) {
  return plan_lanes(HostTopology(lanes(num_lanes), replicas), {.cores = cores_of_this_process()}, {1});
}

/// A meeting that adds up what the replicas bring and counts what is called.
class SumMeeting final : public Meeting {
 public:
  SumMeeting(int value, const char* name = "sum", uint64_t key = 0, int phases = 1)
      : value_(value), name_(name), key_(key), phases_(phases) {}
  const char* what() const override { return name_; }
  uint64_t signature() const override { return key_; }
  std::string describe() const override { return std::string(name_) + "#" + std::to_string(key_); }
  std::span<const Stage> stages() const override {
    static constexpr Stage all[] = {once<&SumMeeting::sum>("sum"), on_each_lane<&SumMeeting::work>("work"),
                                    once<&SumMeeting::between>("between"), on_each_lane<&SumMeeting::work>("more"),
                                    once<&SumMeeting::between>("end")};
    return std::span(all).first(static_cast<std::size_t>(1 + 2 * phases_));
  }
  void sum(std::span<Meeting* const> all) {
    ++prepared;
    for (Meeting* one : all) total += static_cast<SumMeeting*>(one)->value_;
    for (Meeting* one : all) static_cast<SumMeeting*>(one)->total = total;
  }
  void work(int, int) { ++worked; }
  void between() { ++between_phases; }

  std::string_view name() const override { return about; }

  std::string_view about = "";
  int total = 0;
  int prepared = 0;
  std::atomic<int> worked{0};
  int between_phases = 0;

 private:
  const int value_;
  const char* const name_;
  const uint64_t key_;
  const int phases_;
};

/// `error` is an E with this code and these values.
template <class E>
void expect_is(const std::exception_ptr& error, std::string_view code,
               std::initializer_list<std::string_view> values = {},
               const lockstep::testing::Where& where = lockstep::testing::Where::current()) {
  lockstep::testing::expect_error<E>(
      [&] {
        if (error) std::rethrow_exception(error);
      },
      code, values, where);
}

std::string text_of(const std::exception_ptr& error) { return error ? message_of(error) : ""; }

class ReplicaPoolOf : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  int64_t replicas() const { return GetParam().first; }
  int num_lanes() const { return GetParam().second; }
  ReplicaPool pool_{plan_of(GetParam().first, GetParam().second)};
};

TEST_P(ReplicaPoolOf, HasOneCacheOfTensorMemoryForEachLane) {
  // Gives the calling thread's cache.
  const auto cache_here = [] {
    TensorCache* const cache = exchange_thread_cache(nullptr);
    exchange_thread_cache(cache);
    return cache;
  };
  const TensorCacheLease callers_own;
  const ThreadCacheScope scope(callers_own.cache());
  std::vector<TensorCache*> caches(static_cast<std::size_t>(replicas()));
  pool_.run([&](int64_t r) { caches[r] = cache_here(); });
  EXPECT_EQ(cache_here(), &callers_own.cache()) << "the caller's is back";
  for (int64_t r = 0; r < replicas(); ++r) {
    EXPECT_EQ(caches[r], caches[pool_.plan().first_replica_of(pool_.plan().lane_of(r))]);
  }
  const std::set<TensorCache*> different(caches.begin(), caches.end());
  EXPECT_EQ(different.size(), static_cast<std::size_t>(num_lanes()));
  EXPECT_EQ(different.count(nullptr) + different.count(&callers_own.cache()), 0u);
}

TEST_P(ReplicaPoolOf, RunsTheBodyOnceForEachReplica) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<std::atomic<int>> calls(replicas());
    const auto errors = pool_.run([&](int64_t r) { ++calls[r]; });
    for (const auto& count : calls) EXPECT_EQ(count, 1);
    EXPECT_TRUE(std::all_of(errors.begin(), errors.end(), [](const auto& error) { return error == nullptr; }));
  }
}

TEST_P(ReplicaPoolOf, GivesEachReplicaItsOwnThreadForGood) {
  std::vector<std::thread::id> first(replicas());
  pool_.run([&](int64_t r) { first[r] = std::this_thread::get_id(); });
  EXPECT_EQ(std::set<std::thread::id>(first.begin(), first.end()).size(), static_cast<std::size_t>(replicas()));
  EXPECT_EQ(first[0], std::this_thread::get_id()) << "replica 0 runs on the caller's thread";
  std::vector<std::thread::id> second(replicas());
  pool_.run([&](int64_t r) { second[r] = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
}

TEST_P(ReplicaPoolOf, LetsOneReplicaOfALaneRunAtATimeInOrder) {
  const LanePlan& plan = pool_.plan();
  std::vector<std::atomic<int>> running(num_lanes());
  std::vector<std::vector<int64_t>> order(num_lanes());
  pool_.run([&](int64_t r) {
    const int lane = plan.lane_of(r);
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(running[lane].fetch_add(1), 0);
      order[lane].push_back(r);
      std::this_thread::yield();
      running[lane].fetch_sub(1);
      SumMeeting meeting(0);
      pool_.meet(r, meeting);
    }
  });
  for (int lane = 0; lane < num_lanes(); ++lane) {
    std::vector<int64_t> expected;
    for (int round = 0; round < 3; ++round) {
      for (int64_t k = 0; k < plan.num_replicas_of(lane); ++k) expected.push_back(plan.first_replica_of(lane) + k);
    }
    EXPECT_EQ(order[lane], expected);
  }
}

TEST_P(ReplicaPoolOf, CarriesAMeetingOutOnceForAllAndOnceForEachLane) {
  std::vector<int> totals(replicas());
  std::atomic<int> prepared{0};
  std::atomic<int> worked{0};
  std::atomic<int> between{0};
  pool_.run([&](int64_t r) {
    SumMeeting meeting(static_cast<int>(r) + 1, "sum", 0, 2);
    pool_.meet(r, meeting);
    totals[r] = meeting.total;
    prepared += meeting.prepared;
    worked += meeting.worked;
    between += meeting.between_phases;
  });
  const int sum = static_cast<int>(replicas() * (replicas() + 1) / 2);
  EXPECT_EQ(totals, std::vector<int>(replicas(), sum));
  EXPECT_EQ(prepared, 1);
  EXPECT_EQ(worked, 2 * num_lanes());
  EXPECT_EQ(between, 2);
}

TEST_P(ReplicaPoolOf, SurvivesRandomDelaysOverManyRuns) {
  for (int run = 0; run < 20; ++run) {
    std::atomic<int64_t> checksum{0};
    pool_.run([&](int64_t r) {
      std::mt19937 random(static_cast<unsigned>(run * 100 + r));
      for (int round = 0; round < 5; ++round) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 20);
        while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
        SumMeeting meeting(1);
        pool_.meet(r, meeting);
        checksum += meeting.total;
      }
    });
    EXPECT_EQ(checksum, 5 * replicas() * replicas());
  }
}

TEST_P(ReplicaPoolOf, StopsTheOthersWhereOneThrows) {
  const int64_t bad = replicas() - 1;
  std::atomic<int> after{0};
  auto errors = pool_.run([&](int64_t r) {
    SumMeeting meeting(1);
    pool_.meet(r, meeting);
    if (r == bad) throw std::runtime_error("no more");
    SumMeeting never(1);
    pool_.meet(r, never);
    ++after;
  });
  EXPECT_EQ(after, 0);
  for (int64_t r = 0; r < replicas(); ++r) EXPECT_EQ(text_of(errors[r]), r == bad ? "no more" : "");
  // The pool is as good as new.
  errors = pool_.run([&](int64_t r) {
    SumMeeting meeting(1);
    pool_.meet(r, meeting);
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

TEST_P(ReplicaPoolOf, ReportsEveryReplicaThatThrew) {
  const auto errors = pool_.run([&](int64_t r) { throw std::runtime_error("replica " + std::to_string(r)); });
  for (int64_t r = 0; r < replicas(); ++r) EXPECT_EQ(text_of(errors[r]), "replica " + std::to_string(r));
}

TEST_P(ReplicaPoolOf, CannotBeHungByAStepThatSwallowsTheStop) {
  if (replicas() == 1) GTEST_SKIP() << "one replica has nobody to be stopped by";
  const auto errors = pool_.run([&](int64_t r) {
    if (r == 0) throw std::runtime_error("first");
    for (int attempt = 0; attempt < 3; ++attempt) {
      try {
        SumMeeting meeting(1);
        pool_.meet(r, meeting);
        ADD_FAILURE() << "met without replica 0";
      } catch (...) {
      }
    }
  });
  EXPECT_EQ(text_of(errors[0]), "first");
}

TEST_P(ReplicaPoolOf, NamesWhoReturnedAndWhoStillMeets) {
  if (replicas() == 1) GTEST_SKIP() << "one replica cannot disagree";
  const int64_t last = replicas() - 1;
  const auto errors = pool_.run([&](int64_t r) {
    if (r == last) return;
    SumMeeting meeting(1, "all_reduce", 3);
    pool_.meet(r, meeting);
  });
  const std::string who = "replica " + std::to_string(last);
  expect_is<UsageError>(errors[0], "LS-MEETING-ORDER", {who, "0 meetings", "all_reduce#3"});
  EXPECT_EQ(text_of(errors[last]), "");
}

TEST_P(ReplicaPoolOf, NamesBothCallsWhereTheyDiffer) {
  if (replicas() == 1) GTEST_SKIP() << "one replica cannot disagree";
  for (const bool by_name : {true, false}) {
    const auto errors = pool_.run([&](int64_t r) {
      SumMeeting fine(1);
      pool_.meet(r, fine);
      SumMeeting meeting(1, by_name && r == 0 ? "broadcast" : "all_reduce", !by_name && r == 0 ? 8 : 9);
      pool_.meet(r, meeting);
    });
    const std::string text = text_of(errors[0]);
    expect_is<UsageError>(errors[0], "LS-MEETING-ORDER",
                          {"replica 0", by_name ? "broadcast#9" : "all_reduce#8", "all_reduce#9", "meeting 2"});
    for (const auto& error : errors) EXPECT_EQ(text_of(error), text) << "all get the same account";
  }
}

class ThrowingMeeting final : public Meeting {
 public:
  explicit ThrowingMeeting(int where) : where_(where) {}
  const char* what() const override { return "throwing"; }
  std::span<const Stage> stages() const override {
    static constexpr Stage all[] = {
        once<&ThrowingMeeting::begin>("begin"), on_each_lane<&ThrowingMeeting::work>("work"),
        once<&ThrowingMeeting::between>("between"), on_each_lane<&ThrowingMeeting::never>("never")};
    return all;
  }
  void begin() { maybe(0); }
  void work(int lane, int num_lanes) {
    if (lane == num_lanes - 1) maybe(1);
  }
  void between() { maybe(2); }
  void never(int, int) { ADD_FAILURE() << "went on after an exception"; }

 private:
  void maybe(int place) const {
    if (place == where_) throw std::runtime_error("place " + std::to_string(place));
  }
  const int where_;
};

TEST_P(ReplicaPoolOf, AnErrorOfAMeetingReachesEveryReplicaAndFailsTheRunWhateverTheStepCatches) {
  for (int where = 0; where < 3; ++where) {
    std::atomic<int> caught{0};
    std::atomic<int> met_again{0};
    const auto errors = pool_.run([&](int64_t r) {
      const std::string expected = "place " + std::to_string(where);
      try {
        ThrowingMeeting meeting(where);
        pool_.meet(r, meeting);
      } catch (const std::runtime_error& error) {
        if (error.what() == expected) ++caught;
      }
      try {
        SumMeeting next(1);
        pool_.meet(r, next);
        ++met_again;
      } catch (const std::exception&) {
      }
    });
    EXPECT_EQ(caught, replicas());
    EXPECT_EQ(met_again, 0);
    for (const auto& error : errors) EXPECT_EQ(text_of(error), "place " + std::to_string(where));
  }
}

TEST_P(ReplicaPoolOf, AMismatchThatEveryReplicaCatchesFailsTheRun) {
  if (replicas() == 1) GTEST_SKIP() << "one replica cannot disagree";
  const auto errors = pool_.run([&](int64_t r) {
    try {
      SumMeeting meeting(1, "sum", static_cast<uint64_t>(r));
      pool_.meet(r, meeting);
    } catch (const std::exception&) {
    }
    if (r == 0) throw std::runtime_error("a later error");
  });
  for (const auto& error : errors) expect_is<UsageError>(error, "LS-MEETING-ORDER", {"replica 0"});
}

TEST_P(ReplicaPoolOf, WhatAStoppedReplicaThrowsIsNotItsError) {
  if (replicas() == 1) GTEST_SKIP() << "one replica has nobody to be stopped by";
  const int64_t bad = replicas() - 1;
  const auto errors = pool_.run([&](int64_t r) {
    if (r == bad) throw std::runtime_error("first");
    try {
      SumMeeting meeting(1);
      pool_.meet(r, meeting);
    } catch (const std::exception& stop) {
      throw std::logic_error(stop.what());
    }
  });
  for (int64_t r = 0; r < replicas(); ++r) EXPECT_EQ(text_of(errors[r]), r == bad ? "first" : "");
}

TEST_P(ReplicaPoolOf, MeetingsThatDifferByNameAreAMismatch) {
  if (replicas() == 1) GTEST_SKIP() << "one replica cannot disagree";
  const auto errors = pool_.run([&](int64_t r) {
    SumMeeting meeting(1);
    meeting.about = r == 0 ? "left" : "right";
    pool_.meet(r, meeting);
  });
  for (const auto& error : errors) expect_is<UsageError>(error, "LS-MEETING-ORDER");
}

TEST_P(ReplicaPoolOf, AnAbortReachesEveryReplicaThatMeets) {
  std::atomic<int> after{0};
  const auto errors = pool_.run([&](int64_t r) {
    if (r == 0) {
      std::thread([&] { pool_.abort("worker 3 is lost"); }).join();
      pool_.abort("a later reason");
    }
    SumMeeting meeting(1);
    pool_.meet(r, meeting);
    ++after;
  });
  EXPECT_EQ(after, 0);
  for (const auto& error : errors) {
    expect_is<PeerError>(error, "LS-PEER", {"worker 3"});
    EXPECT_FALSE(lockstep::testing::has_value(text_of(error), "a later reason")) << text_of(error);
  }
  const auto again = pool_.run([&](int64_t r) {
    SumMeeting meeting(1);
    pool_.meet(r, meeting);
  });
  for (const auto& error : again) expect_is<PeerError>(error, "LS-PEER", {"worker 3"});  // the pool stays given up
}

INSTANTIATE_TEST_SUITE_P(Shapes, ReplicaPoolOf,
                         ::testing::Values(std::pair<int64_t, int>{1, 1}, std::pair<int64_t, int>{2, 1},
                                           std::pair<int64_t, int>{2, 2}, std::pair<int64_t, int>{4, 2},
                                           std::pair<int64_t, int>{6, 3}, std::pair<int64_t, int>{8, 1},
                                           std::pair<int64_t, int>{3, 2}, std::pair<int64_t, int>{7, 4},
                                           std::pair<int64_t, int>{8, 8}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.first) + "D" + std::to_string(shape.param.second);
                         });

TEST(ReplicaPool, EndsWithoutEverRunning) {
  for (int i = 0; i < 100; ++i) ReplicaPool pool(plan_of(4, 2));
}

TEST(ReplicaPool, TenThousandEmptyRunsOfEightReplicasOnTwoLanesEnd) {
  ReplicaPool pool(plan_of(8, 2));
  std::atomic<int64_t> calls{0};
  for (int i = 0; i < 10000; ++i) pool.run([&](int64_t) { calls.fetch_add(1, std::memory_order_relaxed); });
  EXPECT_EQ(calls, 80000);
}

}  // namespace
}  // namespace lockstep::internal
