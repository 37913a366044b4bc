#include "lockstep/core/per_replica.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

TEST(PerReplica, IteratesInReplicaOrder) {
  const PerReplica<int> values({3, 1, 2});
  EXPECT_EQ(values.size(), 3u);
  EXPECT_EQ(std::vector<int>(values.begin(), values.end()), (std::vector<int>{3, 1, 2}));
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0), 6);
}

TEST(PerReplica, IsIndexedByTheReplicaOfTheWholeRun) {
  PerReplica<std::string> values({"a", "b"}, 4);
  EXPECT_EQ(values[ReplicaId(4)], "a");
  EXPECT_EQ(values[5], "b");
  values[5] = "c";
  EXPECT_EQ(values[5], "c");
}

TEST(PerReplica, NamesTheReplicasOfThisProcessWhereAnotherIsAsked) {
  const PerReplica<int> values({1, 2}, 4);
  for (const int64_t other : {0, 3, 6, -1}) {
    const std::string replica = "replica " + std::to_string(other);
    testing::expect_error<UsageError>([&] { (void)values[other]; }, "LS-NOT-LOCAL", {replica, "replicas 4 to 5"});
  }
}

TEST(PerReplica, HoldsBoolsAsObjectsOfTheirOwn) {
  PerReplica<bool> values({true, false, true});
  bool& second = values[1];
  second = true;
  EXPECT_TRUE(values[1]);
}

}  // namespace
}  // namespace lockstep
