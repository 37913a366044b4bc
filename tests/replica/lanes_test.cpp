#include "lockstep/replica/pool/lanes.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::lanes;

LanePlan plan_for(const std::vector<std::string>& devices, int64_t replicas, int threads, std::vector<int> cores,
                  int64_t local_worker = 0) {
  const Host host{.cores = std::move(cores), .local_worker = local_worker};
  return internal::plan_lanes(HostTopology(devices, replicas), host, {threads});
}

TEST(PlanLanes, DealsReplicasToLanesInBlocks) {
  const auto plan = plan_for(lanes(2), 6, 1, {0, 1});
  std::vector<int> lane_of;
  for (int64_t r = 0; r < 6; ++r) lane_of.push_back(plan.lane_of(r));
  EXPECT_EQ(lane_of, (std::vector<int>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(plan.first_replica_of(1), 3);
}

TEST(PlanLanes, GivesEachLaneACoreOfTheMaskInTurn) {
  const auto plan = plan_for(lanes(3), 0, 1, {2, 5, 6, 9});
  EXPECT_EQ(plan.cores, (std::vector<std::vector<int>>{{2}, {5}, {6}}));
  EXPECT_EQ(plan.num_replicas, 3);
}

TEST(PlanLanes, StartsBehindTheWorkersOfTheSameHost) {
  EXPECT_EQ(plan_for(lanes(2), 2, 1, {0, 1, 2, 3}, 1).cores, (std::vector<std::vector<int>>{{2}, {3}}));
}

TEST(PlanLanes, GivesALaneAsManyCoresAsItsReplicasHaveThreads) {
  EXPECT_EQ(plan_for(lanes(2), 2, 2, {0, 1, 2, 3}).cores, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
}

TEST(PlanLanes, DoesNotPinMoreLanesThanCores) {
  const auto plan = plan_for(lanes(3), 3, 1, {0, 1});
  EXPECT_FALSE(plan.pinned());
  EXPECT_TRUE(plan.oversubscribed());
}

TEST(PlanLanes, UsesAllCoresWhereNothingIsSaid) {
  const auto plan = plan_for({}, 0, 1, {0, 1, 2});
  EXPECT_EQ(plan.names, lanes(3));
  EXPECT_EQ(plan.num_replicas, 3);
  EXPECT_TRUE(plan.replicas_from_machine);
}

TEST(PlanLanes, UsesAtMostAsManyLanesAsReplicas) {
  EXPECT_EQ(plan_for({}, 6, 1, {0, 1, 2, 3}).names, lanes(4));
  EXPECT_EQ(plan_for({}, 7, 1, {0, 1, 2, 3}).names, lanes(4));
  EXPECT_EQ(plan_for({}, 3, 1, {0, 1, 2, 3}).names, lanes(3));
  EXPECT_EQ(plan_for({}, 8, 1, {0, 1, 2, 3, 4, 5, 6, 7, 8}).names, lanes(8));
  EXPECT_FALSE(plan_for({}, 6, 1, {0, 1, 2, 3}).replicas_from_machine);
}

TEST(PlanLanes, TakesAnyLaneNumbers) { EXPECT_EQ(plan_for({"cpu:7", "cpu:3"}, 0, 1, {0, 1}).num_lanes(), 2); }

TEST(PlanLanes, DealsWhatTheLanesDoNotDivideInBlocksThatDifferByOneTheLargerFirst) {
  for (int num_lanes = 1; num_lanes <= 6; ++num_lanes) {
    for (int64_t replicas = num_lanes; replicas <= 20; ++replicas) {
      const auto plan = plan_for(lanes(num_lanes), replicas, 1, {0, 1});
      int64_t next = 0;
      for (int lane = 0; lane < num_lanes; ++lane) {
        EXPECT_EQ(plan.first_replica_of(lane), next);
        const int64_t expected = replicas / num_lanes + (lane < replicas % num_lanes ? 1 : 0);
        EXPECT_EQ(plan.num_replicas_of(lane), expected) << replicas << " on " << num_lanes;
        for (int64_t k = 0; k < expected; ++k) EXPECT_EQ(plan.lane_of(next + k), lane);
        next += expected;
      }
      EXPECT_EQ(next, replicas);
    }
  }
}

TEST(PlanLanes, RefusesFewerReplicasThanLanes) {
  try {
    plan_for(lanes(3), 2, 1, {0, 1});
    ADD_FAILURE() << "a lane without a replica";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.code(), "LS-LANES");
  }
}

TEST(PlanLanes, CountsAQuotaAsCoresAndPinsToNoneOfThem) {
  const Host host{.cores = {0, 1, 2, 3, 4, 5, 6, 7}, .cpu_quota = 3};
  const auto plan = internal::plan_lanes(HostTopology({}, 0), host, {1});
  EXPECT_EQ(plan.names, lanes(3));
  EXPECT_EQ(plan.available_cores, 3);
  EXPECT_FALSE(plan.pinned());
  const auto wide = internal::plan_lanes(HostTopology({}, 0), {.cores = {0, 1}, .cpu_quota = 16}, {1});
  EXPECT_EQ(wide.names, lanes(2));
  EXPECT_TRUE(wide.pinned());
}

TEST(PlanLanes, BeginsAtTheFirstCoreThatItIsTold) {
  const Host host{.cores = {2, 5, 6, 9}, .first_core = 3};
  EXPECT_EQ(internal::plan_lanes(HostTopology(lanes(2)), host, {1}).cores, (std::vector<std::vector<int>>{{9}, {2}}));
}

TEST(PlanLanes, RefusesADeviceTwice) {
  expect_error<UsageError>([] { plan_for({"cpu:1", "cpu:1"}, 0, 1, {0, 1}); }, "LS-LANES", {"device 'cpu:1'"});
  expect_error<UsageError>([] { plan_for({"cpu", "cpu:0"}, 0, 1, {0, 1}); }, "LS-LANES", {"device 'cpu:0'"});
}

TEST(PlanLanes, RefusesWhatCannotBe) {
  expect_error<UsageError>([] { plan_for(lanes(1), -1, 1, {0}); }, "LS-OPTION", {".replicas", "-1"});
  expect_error<UsageError>([] { plan_for(lanes(1), 1, 0, {0}); }, "LS-OPTION", {".threads_per_replica", "0"});
  expect_error<UsageError>([] { plan_for({"cuda:0"}, 1, 1, {0}); }, "LS-DEVICE", {"device 'cuda:0'", "CPU only"});
  expect_error<UsageError>([] { plan_for({"tpu:0"}, 1, 1, {0}); }, "LS-DEVICE", {"'tpu:0'"});
}

}  // namespace
}  // namespace lockstep::internal
