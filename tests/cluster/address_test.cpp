#include "lockstep/cluster/address.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::expect_error;

TEST(Address, ReadsNamesAndNumbers) {
  EXPECT_EQ(parse_address({"A", "node1:2222"}), (Address{"node1", 2222}));
  EXPECT_EQ(parse_address({"A", "job-node-0-0.job:1"}), (Address{"job-node-0-0.job", 1}));
  EXPECT_EQ(parse_address({"A", "10.0.3.7:65535"}), (Address{"10.0.3.7", 65535}));
  EXPECT_EQ(parse_address({"A", "[::1]:80"}), (Address{"::1", 80}));
  EXPECT_EQ(parse_address({"A", "[fe80::1%eth0]:80"}), (Address{"fe80::1%eth0", 80}));
}

TEST(Address, WhatIsMalformedIsNamedWithItsPlace) {
  struct Row {
    const char* text;
    const char* place;
  };
  const Row rows[] = {{"", "it ends at offset 0"},
                      {"node1", "it ends at offset 5"},
                      {"node1:", "it ends at offset 6"},
                      {":2222", "at offset 0 stands ':2222'"},
                      {"node1:0", "at offset 6 stands '0'"},
                      {"node1:65536", "at offset 6 stands '65536'"},
                      {"node1:99999999999", "at offset 6"},
                      {"node1:22a", "at offset 8 stands 'a'"},
                      {"no de:22", "at offset 2"},
                      {"-node:22", "at offset 0"},
                      {"node1:22:33", "an IPv6 address in brackets"},
                      {"::1:80", "at offset 0"},
                      {"fe80::1:80", "an IPv6 address in brackets"},
                      {"[::1]", "it ends at offset 5"},
                      {"[::1]80", "at offset 5 stands '80'"},
                      {"[::1:80", "it ends at offset 7"},
                      {"[node1]:80", "at offset 1 stands 'node1]:80'"},
                      {"[::1%]:80", "at offset 1"},
                      {"http://node1:80", "at offset 5"}};
  for (const Row& row : rows) {
    expect_error<ClusterError>(
        [&] {
          parse_address({"LOCKSTEP_CHIEF_ADDRESS", row.text});
        },
        "LS-CLUSTER-VALUE", {"LOCKSTEP_CHIEF_ADDRESS", row.place});
  }
  expect_error<ClusterError>([] { parse_address({"A", std::string(300, 'a') + ":1"}); }, "LS-CLUSTER-VALUE");
}

TEST(Address, AHostMayHaveBracketsOrNot) {
  EXPECT_EQ(parse_host({"A", "node1"}), "node1");
  EXPECT_EQ(parse_host({"A", "::1"}), "::1");
  EXPECT_EQ(parse_host({"A", "[::1]"}), "::1");
  for (const char* text : {"", "[", "[]", "[node1]", "node1:22", "no/de"}) {
    expect_error<ClusterError>([&] { parse_host({"MASTER_ADDR", text}); }, "LS-CLUSTER-VALUE", {"MASTER_ADDR"});
  }
}

RC_GTEST_PROP(Address, IsReadAsItIsWritten, ()) {
  const auto host = *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::elementOf(std::string("abz019_"))));
  const Address name{host.substr(0, 200), *rc::gen::inRange<uint16_t>(1, 65535)};
  RC_ASSERT(parse_address({"A", to_string(name)}) == name);
  const Address number{"fd00::" + std::to_string(*rc::gen::inRange(1, 9999)), name.port};
  RC_ASSERT(parse_address({"A", to_string(number)}) == number);
}

TEST(Address, AZoneBelongsToTheHostThatUsesIt) {
  EXPECT_TRUE(needs_zone("fe80::1") && needs_zone("fe80::1%eth0") && needs_zone("FEBF::1"));
  EXPECT_FALSE(needs_zone("fd00::1") || needs_zone("::1") || needs_zone("169.254.0.1") || needs_zone("fe80.example"));
  EXPECT_EQ(zone_of("fe80::1%eth0"), "eth0");
  EXPECT_EQ(zone_of("fe80::1"), "");
  EXPECT_EQ(without_zone("fe80::1%eth0"), "fe80::1");
  EXPECT_EQ(without_zone("node1"), "node1");
  EXPECT_EQ(in_zone("fe80::1%eth0", "ens3"), "fe80::1%ens3");
  EXPECT_EQ(in_zone("fe80::1%eth0", ""), "fe80::1%eth0");
  EXPECT_EQ(in_zone("10.0.0.1", "ens3"), "10.0.0.1");
}

TEST(Address, HostsDifferOnlyWhereThatIsCertain) {
  EXPECT_TRUE(hosts_differ("node1", "node2"));
  EXPECT_TRUE(hosts_differ("node1", "node10"));
  EXPECT_TRUE(hosts_differ("10.0.0.1", "10.0.0.2"));
  EXPECT_FALSE(hosts_differ("node1", "NODE1"));
  EXPECT_FALSE(hosts_differ("node1", "node1.cluster.local"));
  EXPECT_FALSE(hosts_differ("::1", "0:0:0:0:0:0:0:1"));
  EXPECT_FALSE(hosts_differ("node1", "10.0.0.1"));
}

}  // namespace
}  // namespace lockstep::internal
