#include "lockstep/comm/join/interfaces.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/cluster/address.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::expect_error;

const std::vector<InterfaceAddress> kInterfaces = {
    {"lo", "127.0.0.1"},      {"eth0", "10.0.3.7"}, {"ib0", "192.168.0.7"},  {"lo", "::1"},
    {"eth0", "fe80::1%eth0"}, {"eth0", "fd00::7"},  {"tun0", "fe80::2%tun0"}};

/// A host with these interfaces, whose route to anything begins at eth0, but for 192.168.0.0/16.
NetworkView view(std::vector<std::string> chief) {
  return {kInterfaces, std::move(chief), [](const std::string& to) -> std::optional<std::string> {
            if (to.starts_with("192.168.")) return "192.168.0.7";
            if (to.starts_with("203.")) return std::nullopt;
            return to.find(':') == std::string::npos ? "10.0.3.7" : "fd00::7";
          }};
}

ClusterSpec two_workers(const std::string& chief, int64_t task, const std::string& interface_name = "") {
  return {.jobs = {{"worker", {chief, ""}}}, .task = task, .interface_name = interface_name};
}

void expect_chosen(const OwnAddress& own, const std::string& name, const std::string& address, bool chief_is_here,
                   const lockstep::testing::Where& where = lockstep::testing::Where::current()) {
  if (own.interface_name != name || own.address != address || own.chief_is_here != chief_is_here) {
    lockstep::testing::fail_at(where, own.interface_name + " " + own.address + (own.chief_is_here ? " chief" : ""));
  }
}

TEST(Interfaces, KnowWhichAddressesTheInternetCannotReach) {
  for (const char* address : {"127.0.0.1", "::1", "10.255.0.1", "172.16.0.1", "172.31.255.255", "192.168.3.4",
                              "100.64.0.1", "100.127.0.1", "169.254.1.1", "fe80::1%eth0", "fc00::1", "fd00::7"}) {
    EXPECT_TRUE(is_private(address)) << address;
  }
  for (const char* address : {"11.0.0.1", "172.15.0.1", "172.32.0.1", "192.169.0.1", "100.128.0.1", "8.8.8.8",
                              "0.0.0.0", "2001:db8::1", "fe00::1", "::", "host"}) {
    EXPECT_FALSE(is_private(address)) << address;
  }
}

TEST(Interfaces, TheRouteToTheChiefDecides) {
  expect_chosen(choose_interface(two_workers("10.0.3.1:1", 1), view({"10.0.3.1"})), "eth0", "10.0.3.7", false);
  expect_chosen(choose_interface(two_workers("192.168.0.1:1", 1), view({"192.168.0.1"})), "ib0", "192.168.0.7", false);
  expect_chosen(choose_interface(two_workers("[fd00::1]:1", 1), view({"fd00::1"})), "eth0", "fd00::7", false);
  // The first address has no route.
  expect_chosen(choose_interface(two_workers("a:1", 1), view({"203.0.113.1", "10.0.3.1"})), "eth0", "10.0.3.7", false);
}

TEST(Interfaces, TheChiefUsesItsOwnAddress) {
  expect_chosen(choose_interface(two_workers("192.168.0.7:1", 0), view({"192.168.0.7"})), "ib0", "192.168.0.7", true);
  expect_chosen(choose_interface(two_workers("me:1", 0), view({"127.0.1.1", "10.0.3.7"})), "eth0", "10.0.3.7", true);
  expect_chosen(choose_interface(two_workers("localhost:1", 0), view({"127.0.0.1"})), "lo", "127.0.0.1", true);
  expect_chosen(choose_interface(two_workers("me:1", 0), view({"127.0.1.1"})), "lo", "127.0.0.1", true);
}

TEST(Interfaces, WithoutAChiefsAddressTheLoopbackServes) {
  expect_chosen(choose_interface({}, view({})), "lo", "127.0.0.1", false);
}

TEST(Interfaces, ANamedOneGoesBeforeTheRoute) {
  expect_chosen(choose_interface(two_workers("10.0.3.1:1", 1, "ib0"), view({"10.0.3.1"})), "ib0", "192.168.0.7", false);
  expect_chosen(choose_interface(two_workers("10.0.3.1:1", 1, "eth0"), view({"10.0.3.1"})), "eth0", "10.0.3.7", false);
  expect_chosen(choose_interface(two_workers("[fd00::1]:1", 1, "eth0"), view({"fd00::1"})), "eth0", "fd00::7", false);
  expect_chosen(choose_interface(two_workers("10.0.3.1:1", 1, "tun0"), view({"10.0.3.1"})), "tun0", "fe80::2%tun0",
                false);
  expect_error<ClusterError>([] { choose_interface(two_workers("10.0.3.1:1", 1, "eth1"), view({"10.0.3.1"})); },
                             "LS-CLUSTER-INTERFACE", {"'eth1'", "eth0 (10.0.3.7)", "ib0 (192.168.0.7)"});
}

TEST(Interfaces, ALoopbackAddressIsNotOfferedToAnotherHost) {
  const ClusterSpec other{.jobs = {{"worker", {"me:1", "node2:1"}}}};
  expect_error<ClusterError>([&] { choose_interface(other, view({"127.0.1.1"})); }, "LS-CLUSTER-INTERFACE",
                             {"127.0.0.1", "'node2'", "LOCKSTEP_INTERFACE"});
  const ClusterSpec named{.jobs = {{"worker", {"me:1", "node2:1"}}}, .interface_name = "lo"};
  expect_error<ClusterError>([&] { choose_interface(named, view({"10.0.3.7"})); }, "LS-CLUSTER-INTERFACE", {"'node2'"});
  const ClusterSpec same{.jobs = {{"worker", {"localhost:1", "localhost:2"}}}};
  expect_chosen(choose_interface(same, view({"127.0.0.1"})), "lo", "127.0.0.1", true);
}

TEST(Interfaces, AnUnreachableOrNamelessChiefIsNamed) {
  expect_error<ClusterError>([] { choose_interface(two_workers("far:1", 1), view({"203.0.113.1"})); },
                             "LS-CLUSTER-INTERFACE", {"far:1", "203.0.113.1"});
  expect_error<ClusterError>([] { choose_interface(two_workers("0.0.0.0:1", 1), view({"0.0.0.0"})); },
                             "LS-CLUSTER-INTERFACE", {"0.0.0.0"});
}

TEST(Interfaces, LoopbackAndWildcardAreRecognised) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "127.255.255.255", "::1"})
    EXPECT_TRUE(is_loopback(address)) << address;
  for (const char* address : {"128.0.0.1", "10.0.0.1", "::2", "localhost", ""})
    EXPECT_FALSE(is_loopback(address)) << address;
  for (const char* address : {"0.0.0.0", "::"}) EXPECT_TRUE(is_wildcard(address)) << address;
  for (const char* address : {"127.0.0.1", "::1", "*", ""}) EXPECT_FALSE(is_wildcard(address)) << address;
}

TEST(Interfaces, OfThisMachineAreListedAndRoutedTo) {
  const std::vector<InterfaceAddress> all = network_interfaces();
  const auto loopback = std::find_if(all.begin(), all.end(), [](const auto& i) { return i.address == "127.0.0.1"; });
  ASSERT_NE(loopback, all.end());
  EXPECT_EQ(route_source("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(route_source("no number"), std::nullopt);
  const OwnAddress own = choose_interface(two_workers("127.0.0.1:1", 1));
  EXPECT_EQ(own.interface_name, loopback->name);
  EXPECT_TRUE(own.chief_is_here);
}

TEST(LookUp, TakesNumbersAndNames) {
  EXPECT_EQ(look_up("10.0.3.7", std::chrono::seconds(0)), (std::vector<std::string>{"10.0.3.7"}));
  EXPECT_EQ(look_up("fd00::7", std::chrono::seconds(0)), (std::vector<std::string>{"fd00::7"}));
  const std::vector<std::string> numbers = look_up("localhost", std::chrono::seconds(30));
  EXPECT_TRUE(std::all_of(numbers.begin(), numbers.end(), is_loopback));
}

TEST(Interfaces, GiveALinkLocalNumberTheZoneOfThisHost) {
  const std::vector<InterfaceAddress> one = {{"lo", "::1"}, {"ens3", "fe80::7%ens3"}, {"ens3", "fd00::7"}};
  EXPECT_EQ(in_own_zone("fe80::1%eth0", "", one), "fe80::1%ens3");  // eth0 is another host's
  EXPECT_EQ(in_own_zone("fe80::1", "", one), "fe80::1%ens3");
  EXPECT_EQ(in_own_zone("fe80::1%eth0", "ib0", one), "fe80::1%ib0");
  EXPECT_EQ(in_own_zone("fe80::1%eth0", "", kInterfaces), "fe80::1%eth0");
  EXPECT_EQ(in_own_zone("fe80::1", "tun0", kInterfaces), "fe80::1%tun0");
  for (const char* other : {"fd00::1", "::1", "10.0.0.1", "169.254.0.1", "node1"}) {
    EXPECT_EQ(in_own_zone(other, "eth0", kInterfaces), other);
  }
  for (const char* unclear : {"fe80::1", "fe80::1%wlan0"}) {
    expect_error<ClusterError>([&] { in_own_zone(unclear, "", kInterfaces); }, "LS-CLUSTER-INTERFACE",
                               {"'" + std::string(unclear) + "'", "2 interfaces", "eth0", "tun0"});
  }
}

TEST(LookUp, GivesUpInTimeAndNamesTheHost) {
  // No answer can be there after no time, and a name that does not exist is an error as well.
  expect_error<ClusterError>([] { look_up("no-such-host.invalid", std::chrono::milliseconds(0)); },
                             "LS-CLUSTER-LOOK-UP", {"'no-such-host.invalid'"});
}

}  // namespace
}  // namespace lockstep::internal
