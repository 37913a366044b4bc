// Who deals with whom between hosts, and which sums a host hands on.
#include "lockstep/exchange/hosts.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "lockstep/core/blocks.h"

namespace lockstep::internal {
namespace {

TEST(Hosts, AreNumberedInTheOrderOfTheirFirstWorkers) {
  const Hosts hosts({7, 7, 2, 7, 5});
  EXPECT_EQ(hosts.count(), 3);
  EXPECT_EQ(hosts.num_workers(), 5);
  EXPECT_EQ(hosts.workers_of(0), (std::vector<int64_t>{0, 1, 3}));
  EXPECT_EQ(hosts.workers_of(1), (std::vector<int64_t>{2}));
  EXPECT_EQ(hosts.host_of(4), 2);
}

TEST(Hosts, NeighboursWhoseReplicasAreACompleteSubtreeAreOne) {
  EXPECT_EQ(Hosts({0, 0, 1, 1}).subtrees(0, 8), (std::vector<Subtree>{{0, 4}}));
  EXPECT_EQ(Hosts({0, 0, 1, 1}).subtrees(1, 8), (std::vector<Subtree>{{4, 4}}));
  EXPECT_EQ(Hosts({0, 0, 0, 1}).subtrees(0, 4), (std::vector<Subtree>{{0, 2}, {2, 1}}));
  EXPECT_EQ(Hosts({0, 1, 0, 1}).subtrees(1, 8), (std::vector<Subtree>{{2, 2}, {6, 2}}));
}

/// Some workers on some hosts.
std::vector<int64_t> random_hosts(std::mt19937& random) {
  std::vector<int64_t> numbers(1 + random() % 9);
  const auto hosts = 1 + random() % 4;
  for (int64_t& one : numbers) one = static_cast<int64_t>(random() % hosts);
  return numbers;
}

TEST(Hosts, EveryReplicaIsInOneSubtreeOfItsHost) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const Hosts hosts(random_hosts(random));
    const int64_t replicas = hosts.num_workers() + static_cast<int64_t>(random() % 9);
    std::map<int64_t, int64_t> host_of;  // by replica
    for (int64_t h = 0; h < hosts.count(); ++h) {
      for (const Subtree& one : hosts.subtrees(h, replicas)) {
        for (int64_t r = one.first; r < one.first + one.count; ++r) EXPECT_TRUE(host_of.emplace(r, h).second);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(host_of.size()), replicas);
    for (const auto& [replica, host] : host_of)
      EXPECT_EQ(host, hosts.host_of(part_that_has(replicas, hosts.num_workers(), replica)));
    for (int64_t h = 0; h < hosts.count(); ++h) {
      for (const int64_t r : hosts.replicas(h, replicas)) EXPECT_EQ(host_of.at(r), h);
    }
  }
}

TEST(Hosts, TheWorkersOfOtherHostsAreDealtEvenlyToThoseOfEach) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 300; ++trial) {
    const Hosts hosts(random_hosts(random));
    for (int64_t h = 0; h < hosts.count(); ++h) {
      std::map<int64_t, std::size_t> load;
      std::size_t foreign = 0;
      for (int64_t w = 0; w < hosts.num_workers(); ++w) {
        if (hosts.host_of(w) == h) continue;
        const int64_t partner = hosts.partner(h, w);
        EXPECT_EQ(hosts.host_of(partner), h);
        ++load[partner];
        ++foreign;
      }
      const std::size_t own = hosts.workers_of(h).size();
      for (const auto& [partner, count] : load) EXPECT_LE(count, (foreign + own - 1) / own);
    }
  }
}

}  // namespace
}  // namespace lockstep::internal
