// How records go round: who deals with whom, and what arrives.
#include "lockstep/comm/network/dissemination.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/network/seen_calls.h"

namespace lockstep::internal {
namespace {

/// What each of the workers has at the end. The messages of a round are made before any of them arrives.
std::vector<std::vector<std::string>> gather(const std::vector<std::string>& records, std::size_t* bytes = nullptr) {
  const auto workers = static_cast<int64_t>(records.size());
  std::vector<GatheredRecords> gathered;
  for (int64_t w = 0; w < workers; ++w) gathered.emplace_back(workers, w, records[static_cast<std::size_t>(w)]);
  for (int round = 0; round < Dissemination(workers, 0).num_rounds(); ++round) {
    std::vector<std::string> arrives(records.size());
    for (int64_t w = 0; w < workers; ++w) {
      const Dissemination mine(workers, w);
      const std::string message = gathered[static_cast<std::size_t>(w)].message(mine.count(round));
      EXPECT_EQ(Dissemination(workers, mine.to(round)).from(round), w);
      if (bytes) *bytes = std::max(*bytes, message.size());
      arrives[static_cast<std::size_t>(mine.to(round))] = message;
    }
    for (int64_t w = 0; w < workers; ++w) {
      const auto at = static_cast<std::size_t>(w);
      EXPECT_TRUE(gathered[at].add(arrives[at], Dissemination(workers, w).count(round)));
    }
  }
  std::vector<std::vector<std::string>> all;
  for (const GatheredRecords& one : gathered) all.push_back(one.by_worker());
  return all;
}

TEST(Dissemination, BringsEachRecordToEachWorkerInItsPlace) {
  for (std::size_t workers = 1; workers <= 70; ++workers) {
    std::vector<std::string> records;
    for (std::size_t w = 0; w < workers; ++w) records.push_back(std::string(w % 5, 'x') + std::to_string(w));
    for (const std::vector<std::string>& all : gather(records)) ASSERT_EQ(all, records) << workers << " workers";
  }
}

RC_GTEST_PROP(Dissemination, BringsAnyRecords, ()) {
  const auto records = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::string>>(
      rc::gen::element<std::string>("", "a", "b", std::string(300, 'c'), std::string(1, '\0'))));
  for (const std::vector<std::string>& all : gather(records)) RC_ASSERT(all == records);
}

TEST(Dissemination, SendsARecordThatAllHaveOnceInEachMessage) {
  std::size_t bytes = 0;
  const std::vector<std::string> records(1000, std::string(200, 'x'));
  EXPECT_EQ(gather(records, &bytes).back(), records);
  EXPECT_EQ(bytes, 200U + 2 * sizeof(uint64_t));
}

TEST(Dissemination, TakesAsManyRoundsAsTheLogarithmAndSendsOneMessageFromAWorkerToAnotherOne) {
  for (int64_t workers = 1; workers <= 200; ++workers) {
    for (int64_t self = 0; self < workers; ++self) {
      const Dissemination one(workers, self);
      ASSERT_EQ(one.num_rounds(), static_cast<int>(std::ceil(std::log2(workers))));
      std::set<int64_t> to;
      std::set<int64_t> from;
      int64_t gathered = 1;
      for (int round = 0; round < one.num_rounds(); ++round) {
        ASSERT_TRUE(to.insert(one.to(round)).second && one.to(round) != self);
        ASSERT_TRUE(from.insert(one.from(round)).second && one.from(round) != self);
        ASSERT_LE(one.count(round), gathered) << "it has what it sends";
        gathered += one.count(round);
      }
      ASSERT_EQ(gathered, workers);
      to.merge(from);
      ASSERT_EQ(std::vector<int64_t>(to.begin(), to.end()), one.partners());
    }
  }
}

TEST(Dissemination, MakesPartnersOfBothSides) {
  for (const int64_t workers : {2, 3, 6, 17, 64, 100}) {
    for (int64_t self = 0; self < workers; ++self) {
      for (const int64_t other : Dissemination(workers, self).partners()) {
        const std::vector<int64_t> back = Dissemination(workers, other).partners();
        ASSERT_TRUE(std::find(back.begin(), back.end(), self) != back.end()) << workers << ", " << self;
      }
    }
  }
}

TEST(GatheredRecords, AreReadFromWhatTheyMakeAlone) {
  GatheredRecords one(8, 0, "a");
  ASSERT_TRUE(one.add(GatheredRecords(8, 1, "b").message(1), 1));
  const std::string message = one.message(2);
  const auto is_read = [](const std::string& bytes, int64_t count) {
    return GatheredRecords(8, 6, "").add(bytes, count);
  };
  EXPECT_TRUE(is_read(message, 2));
  EXPECT_FALSE(is_read(message, 1)) << "records of more workers";
  EXPECT_FALSE(is_read(message, 3)) << "records of fewer workers";
  EXPECT_FALSE(is_read(message + '\0', 2)) << "more bytes";
  for (std::size_t size = 0; size < message.size(); ++size) EXPECT_FALSE(is_read(message.substr(0, size), 2)) << size;
  for (const uint64_t word : {uint64_t{0}, uint64_t{3}, std::numeric_limits<uint64_t>::max()}) {
    std::string of_none = message;  // a run of so many workers
    of_none.replace(0, sizeof(word), reinterpret_cast<const char*>(&word), sizeof(word));
    EXPECT_FALSE(is_read(of_none, 2)) << word;
  }
}

RC_GTEST_PROP(GatheredRecords, RefuseOrReadAnyBytes, (std::string bytes)) {
  GatheredRecords one(8, 6, "");
  const auto count = *rc::gen::inRange<int64_t>(1, 6);
  if (!one.add(bytes, count)) return;
  GatheredRecords other(8, 5, "x");
  RC_ASSERT(other.add(one.message(count + 1), count + 1));
  RC_ASSERT(other.message(count + 2).ends_with(one.message(count + 1)));
}

TEST(TreeOfMembers, ReachesEachWorkerOnceByItsParentAndNobodyHasMoreChildrenThanTheLogarithm) {
  for (int64_t workers = 2; workers <= 300; ++workers) {
    std::map<int64_t, int64_t> parent_of;
    for (int64_t self = 0; self < workers; ++self) {
      const std::vector<int64_t> children = children_in_tree(workers, self);
      ASSERT_LE(static_cast<double>(children.size()), std::ceil(std::log2(workers)));
      for (const int64_t child : children) {
        ASSERT_TRUE(parent_of.emplace(child, self).second) << child << " of " << workers;
        ASSERT_EQ(parent_in_tree(child), self);
        ASSERT_LT(self, child) << "who has the list is reached from worker 0";
      }
    }
    ASSERT_EQ(parent_of.size(), static_cast<std::size_t>(workers - 1));
  }
}

TEST(SeenCalls, NameWhoHasNotComeOrForWhomThatOneWaits) {
  SeenCalls seen(5);
  EXPECT_EQ(seen.who_holds_up(3, 1), 3) << "nothing has been heard from it";
  seen.see(3, 17, 4);
  EXPECT_EQ(seen.who_holds_up(3, 18), 3) << "it has not come to that call";
  EXPECT_EQ(seen.who_holds_up(3, 17), 4);
  EXPECT_EQ(seen.who_holds_up(3, 16), -1) << "it has ended that call";
  seen.see(3, 17, -1);
  EXPECT_EQ(seen.who_holds_up(3, 17), -1);
  for (const int64_t no_worker : {int64_t{5}, int64_t{-2}, std::numeric_limits<int64_t>::max()}) {
    seen.see(3, 17, no_worker);
    EXPECT_EQ(seen.who_holds_up(3, 17), -1) << no_worker;
  }
}

}  // namespace
}  // namespace lockstep::internal
