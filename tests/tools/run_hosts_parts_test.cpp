// The parts of `lockstep run --hosts` that decide and do nothing.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/support/errors.h"
#include "tools/run/host_share.h"
#include "tools/run/hosts_file.h"

namespace {

using lockstep::ClusterError;
using lockstep::UsageError;
using lockstep::testing::expect_error;
using lockstep::tools::HostLine;
using lockstep::tools::HostShare;
using lockstep::tools::index_of;
using lockstep::tools::job_id_of;
using lockstep::tools::parse_hosts;
using lockstep::tools::read_hosts;
using lockstep::tools::share_of;
using lockstep::tools::ThisHost;

std::vector<HostLine> parse(const std::string& text) { return parse_hosts("hosts", text); }

void expect_hosts(const std::string& text, const std::vector<std::pair<std::string, int>>& expected) {
  std::vector<std::pair<std::string, int>> got;
  for (const HostLine& host : parse(text)) got.emplace_back(host.host, host.slots);
  EXPECT_EQ(got, expected) << text;
}

TEST(HostsFile, HasAHostInEachLineAndPerhapsItsSlots) {
  expect_hosts("node1\nnode2:4\nnode3 slots=8\n", {{"node1", 0}, {"node2", 4}, {"node3", 8}});
  expect_hosts("10.0.0.1:2\n[fd00::1]\n[fd00::2]:3\n[fe80::1%eth0]\tslots=4",
               {{"10.0.0.1", 2}, {"fd00::1", 0}, {"fd00::2", 3}, {"fe80::1%eth0", 4}});
  expect_hosts("# all\n\n  node1:1024  # the chief's\r\n\t\n#\nnode2#two", {{"node1", 1024}, {"node2", 0}});
  expect_hosts("127.0.0.1\n127.0.0.2:2\n[::1]\nlocalhost",
               {{"127.0.0.1", 0}, {"127.0.0.2", 2}, {"::1", 0}, {"localhost", 0}});
  EXPECT_EQ(parse("\n#\nnode1\n")[0].line, 3u);
}

TEST(HostsFile, MayBeginWithTheMarkOfUtf8ButIsNoUtf16) {
  expect_hosts("\xef\xbb\xbfnode1:2\nnode2", {{"node1", 2}, {"node2", 0}});
  expect_hosts("\xef\xbb\xbf# all\nnode1", {{"node1", 0}});
  const std::string utf16("n\0o\0d\0e\0\n\0", 10);
  for (const std::string& text : {"\xff\xfe" + utf16, "\xfe\xff" + utf16.substr(1), utf16, utf16.substr(1, 8)}) {
    expect_error<UsageError>([&] { parse(text); }, "LS-HOSTS", {"hosts", "UTF-16"});
  }
  expect_error<UsageError>([] { parse("\xef\xbb\xbf"); }, "LS-HOSTS", {"names no host"});
}

TEST(HostsFile, NamesThePlaceOfEachMistake) {
  const auto expect_refused = [](const std::string& text, const std::string& place, const std::string& what) {
    SCOPED_TRACE(text);
    expect_error<UsageError>([&] { parse(text); }, "LS-HOSTS", {"hosts, " + place, what});
  };
  expect_refused("node1\nno$de", "line 2, column 1: 'no$de'", "is not the name or the number of a host");
  expect_refused("a\xffz", "line 1, column 1: 'a\\xffz'", "is not the name or the number of a host");
  expect_refused(":4", "line 1, column 1", "is not the name or the number of a host");
  expect_refused("0.0.0.0", "line 1, column 1", "names no host");
  expect_refused("[::]:2", "line 1, column 1", "names no host");
  expect_refused("fd00::1", "line 1, column 1", "needs brackets");
  expect_refused("[fd00::1", "line 1, column 1", "has no ']'");
  expect_refused("[node1]:2", "line 1, column 1", "brackets without an IPv6 number");
  expect_refused("[fd00::x]", "line 1, column 1", "is not the name or the number of a host");
  expect_refused("[fd00::1]2", "line 1, column 10: '2'", "stands behind the bracket");
  for (const char* slots : {"", "0", "-1", "x", "1025", "29500", "99999999999999999999", "2:3"}) {
    if (std::string(slots) != "2:3") {
      expect_refused("  node1:" + std::string(slots), "line 1, column 9: '" + std::string(slots) + "'", "--port");
    }
    expect_refused("node1  slots=" + std::string(slots), "line 1, column 14: '" + std::string(slots) + "'",
                   "1 to 1024");
  }
  expect_refused("node1 max_slots=4", "line 1, column 7: 'max_slots=4'", "is not slots=K");
  expect_refused("node1 4", "line 1, column 7: '4'", "is not slots=K");
  expect_refused("node1:4 slots=4", "line 1, column 9", "a second time");
  expect_refused("node1 slots=4 slots=4", "line 1, column 15", "a second time");
  expect_refused("node1\nnode2\n NODE1:2", "line 3, column 2", "the host of line 1 again");
  expect_refused("[fd00::1]\n[fd00:0::1]", "line 2, column 1", "the host of line 1 again");
  expect_refused("node1\n 127.0.0.1", "line 2, column 2", "another host on each host");
  expect_refused("localhost:2\nnode1", "line 1, column 1", "another host on each host");
}

TEST(HostsFile, WithoutAHostOrWithoutAFileIsRefused) {
  expect_error<UsageError>([] { parse(""); }, "LS-HOSTS", {"hosts names no host"});
  expect_error<UsageError>([] { parse("# nobody\n\n"); }, "LS-HOSTS", {"hosts names no host"});
  expect_error<UsageError>([] { read_hosts("/nowhere/hosts"); }, "LS-HOSTS", {"/nowhere/hosts", "No such file"});
  expect_error<UsageError>([] { read_hosts("/"); }, "LS-HOSTS", {"cannot be read", "directory"});
  expect_error<UsageError>([] { read_hosts("/dev/zero"); }, "LS-HOSTS", {"/dev/zero", "1048576 bytes"});
}

TEST(HostShare, FollowsTheLinesBefore) {
  const auto hosts = parse("a:2\nb\nc:1\nd");
  const std::vector<std::pair<int, int>> expected = {{0, 2}, {2, 3}, {5, 1}, {6, 3}};  // first worker, workers
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const HostShare share = share_of(hosts, i, 3);
    EXPECT_EQ(share.host, static_cast<int>(i));
    EXPECT_EQ(share.num_hosts, 4);
    EXPECT_EQ(share.num_workers, 9);
    EXPECT_EQ(std::pair(share.first_worker, share.workers), expected[i]) << i;
  }
}

TEST(HostShare, NeedsANumberForLinesWithoutSlots) {
  EXPECT_EQ(share_of(parse("a:2\nb:3"), 1, 0).num_workers, 5);
  expect_error<UsageError>([] { share_of(parse("a:2\n\nb"), 0, 0); }, "LS-FLAG", {"line 3", "-n N"});
  std::string many;
  for (int i = 0; i < 65; ++i) many += "node" + std::to_string(i) + ":1024\n";
  expect_error<UsageError>([&] { share_of(parse(many), 0, 0); }, "LS-HOSTS", {"66560 workers", "65536"});
}

TEST(HostShare, GivesAllLaunchersOneJobWhateverTheSlotsAre) {
  const std::string id = job_id_of(parse("a:2\nb"), 29600);
  EXPECT_EQ(id, job_id_of(parse("# spaces and slots\n a\n b slots=4\n"), 29600));
  EXPECT_NE(id, job_id_of(parse("a:2\nb"), 29601));
  EXPECT_NE(id, job_id_of(parse("b\na:2"), 29600));
  EXPECT_NE(id, job_id_of(parse("a:2\nb\nc"), 29600));
  EXPECT_NE(job_id_of(parse("ab\nc"), 29600), job_id_of(parse("a\nbc"), 29600));
}

/// A host in a network whose name service knows these names.
struct Network {
  ThisHost self{.name = "node2", .addresses = {"127.0.0.1", "10.0.0.2", "fd00::2", "fe80::2%eth0"}};
  std::map<std::string, std::vector<std::string>> names = {
      {"node1.cluster", {"10.0.0.1"}}, {"two", {"192.168.0.2", "10.0.0.2"}}, {"both", {"127.0.1.1"}}};
  mutable std::vector<std::string> looked_up = {};

  std::size_t index(const std::string& text) const {
    return index_of(self, parse(text), [&](const std::string& host) {
      looked_up.push_back(host);
      const auto found = names.find(host);
      if (found == names.end()) throw ClusterError("LS-CLUSTER-LOOK-UP", "not known", "correct it");
      return found->second;
    });
  }
};

TEST(ThisHost, IsFoundByItsNameOrItsAddress) {
  const Network network;
  EXPECT_EQ(network.index("node1\nnode2\nnode3"), 1u);
  EXPECT_EQ(network.index("node1.cluster\nNODE2.cluster\nnode22.cluster"), 1u);
  EXPECT_EQ(network.index("10.0.0.1\n10.0.0.3\n10.0.0.2"), 2u);
  EXPECT_EQ(network.index("[fd00::1]\n[fd00:0:0::2]"), 1u);
  EXPECT_EQ(network.index("[fe80::1%eth1]\n[fe80::2%eth1]"), 1u);
  EXPECT_EQ(network.looked_up, std::vector<std::string>()) << "what the file says by itself needs no look-up";
}

TEST(ThisHost, IsLookedUpWhereNoLineSaysIt) {
  const Network network;
  EXPECT_EQ(network.index("node1.cluster\nunknown\ntwo"), 2u);
  EXPECT_EQ(network.looked_up, (std::vector<std::string>{"node1.cluster", "unknown", "two"}));
}

TEST(ThisHost, IsTheOnlyLoopbackAddressAndNoneOfSeveral) {
  const Network network;
  for (const char* one : {"127.0.0.1", "127.0.0.7:3", "[::1]", "localhost"}) EXPECT_EQ(network.index(one), 0u) << one;
  expect_error<UsageError>([&] { network.index("127.0.0.1\n127.0.0.2"); }, "LS-HOST-INDEX",
                           {"0 (127.0.0.1), 1 (127.0.0.2)", "'node2'", "10.0.0.2", "--host-index"});
}

TEST(ThisHost, IsNotGuessed) {
  const Network network;
  expect_error<UsageError>([&] { network.index("node1.cluster\nnode4\n10.0.0.9"); }, "LS-HOST-INDEX",
                           {"none of the 3 hosts", "node4", "'node2'", "10.0.0.2, fd00::2", "--host-index"});
  expect_error<UsageError>([&] { network.index("node2\n10.0.0.2"); }, "LS-HOST-INDEX",
                           {"0 (node2), 1 (10.0.0.2)", "--host-index"});
  expect_error<UsageError>([&] { network.index("node2.a\nnode2.b"); }, "LS-HOST-INDEX", {"0 (node2.a), 1 (node2.b)"});
  expect_error<UsageError>([&] { network.index("both\nnode1.cluster"); }, "LS-HOST-INDEX", {"none of the 2 hosts"});
}

}  // namespace
