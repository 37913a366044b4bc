#include "lockstep/cluster/host_list.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::expect_error;
using Hosts = std::vector<std::string>;
using Counts = std::vector<int64_t>;

Hosts hosts(const std::string& text, int64_t most = 1000) { return expand_host_list({"LIST", text}, most); }
Counts counts(const std::string& text, int64_t most = 1000) { return expand_tasks_per_node({"TASKS", text}, most); }

TEST(HostList, IsExpandedInItsOrder) {
  EXPECT_EQ(hosts("alpha"), (Hosts{"alpha"}));
  EXPECT_EQ(hosts("alpha,beta,gamma"), (Hosts{"alpha", "beta", "gamma"}));
  EXPECT_EQ(hosts("n[1-3,7]"), (Hosts{"n1", "n2", "n3", "n7"}));
  EXPECT_EQ(hosts("n[7,1-2],a"), (Hosts{"n7", "n1", "n2", "a"}));
  EXPECT_EQ(hosts("n[08-11]"), (Hosts{"n08", "n09", "n10", "n11"}));
  EXPECT_EQ(hosts("n[8-11]"), (Hosts{"n8", "n9", "n10", "n11"}));
  EXPECT_EQ(hosts("n[001,10]"), (Hosts{"n001", "n10"}));
  EXPECT_EQ(hosts("rack[1-2]n[3-4]-ib"), (Hosts{"rack1n3-ib", "rack1n4-ib", "rack2n3-ib", "rack2n4-ib"}));
  EXPECT_EQ(hosts("node-a.cluster,n[1-2].x"), (Hosts{"node-a.cluster", "n1.x", "n2.x"}));
}

TEST(HostList, WhatIsMalformedIsNamedWithItsPlace) {
  struct Row {
    const char* text;
    const char* place;
  };
  const Row rows[] = {{"", "it ends at offset 0"},
                      {"a,", "it ends at offset 2"},
                      {",a", "at offset 0 stands ',a'"},
                      {"a,,b", "at offset 2 stands ',b'"},
                      {"n[1-3", "it ends at offset 5"},
                      {"n[", "it ends at offset 2"},
                      {"n[]", "at offset 2 stands ']'"},
                      {"n[3-1]", "at offset 2 stands '3-1]'"},
                      {"n[1-]", "at offset 4 stands ']'"},
                      {"n[-1]", "at offset 2 stands '-1]'"},
                      {"n[a]", "at offset 2 stands 'a]'"},
                      {"n[[1]]", "at offset 2"},
                      {"n]1", "at offset 1 stands ']1'"},
                      {"n[1]]", "at offset 4 stands ']'"},
                      {"n[1,,2]", "at offset 4"},
                      {"n[1234567890]", "at offset 2"},
                      {"n 1", "at offset 0"},
                      {"a,n/1", "at offset 2"}};
  for (const Row& row : rows) {
    expect_error<ClusterError>([&] { hosts(row.text); }, "LS-CLUSTER-VALUE", {"LIST", row.place});
  }
}

TEST(HostList, IsBounded) {
  EXPECT_EQ(hosts("n[1-10]", 10).size(), 10u);
  EXPECT_EQ(hosts("n[1-2]m[1-5]", 10).size(), 10u);
  for (const char* text : {"n[1-11]", "n[1-10],a", "n[0-999999999]", "n[1-4]m[1-3]", "n[1-5,2-7]",
                           "n[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]"}) {
    expect_error<ClusterError>([&] { hosts(text, 10); }, "LS-CLUSTER-VALUE", {"at most"});
  }
  expect_error<ClusterError>([] { hosts(std::string(250, 'a') + "[1000-1001]"); }, "LS-CLUSTER-VALUE");
}

RC_GTEST_PROP(HostList, ARangeHasEachNumberOnceWithItsZeros, ()) {
  const auto first = *rc::gen::inRange<int64_t>(0, 5000);
  const auto size = *rc::gen::inRange<int64_t>(1, 500);
  const auto width = *rc::gen::inRange(1, 9);
  const Hosts all = hosts(fmt::format("n[{:0{}}-{:0{}}]x", first, width, first + size - 1, width));
  RC_ASSERT(static_cast<int64_t>(all.size()) == size);
  for (int64_t i = 0; i < size; ++i) RC_ASSERT(all[i] == fmt::format("n{:0{}}x", first + i, width));
}

TEST(TasksPerNode, AreExpanded) {
  EXPECT_EQ(counts("1"), (Counts{1}));
  EXPECT_EQ(counts("2(x3),1"), (Counts{2, 2, 2, 1}));
  EXPECT_EQ(counts("3(x2),2,1"), (Counts{3, 3, 2, 1}));
}

TEST(TasksPerNode, WhatIsMalformedOrTooMuchIsNamedWithItsPlace) {
  struct Row {
    const char* text;
    const char* place;
  };
  const Row rows[] = {{"", "it ends at offset 0"},   {"2(", "it ends at offset 2"},
                      {"2(3)", "at offset 2"},       {"2(x)", "at offset 3"},
                      {"2(x3", "it ends"},           {"2,", "it ends at offset 2"},
                      {"2(x3)1", "at offset 5"},     {"x", "at offset 0"},
                      {"0", "at offset 0"},          {"2(x0)", "at offset 0"},
                      {"1,11", "at offset 2"},       {"1(x999999999)", "at offset 0"},
                      {"999999999", "at offset 0"},  {"2(x3),2(x3)", "at offset 6"},
                      {"12345678901", "at offset 0"}};
  for (const Row& row : rows) {
    expect_error<ClusterError>([&] { counts(row.text, 10); }, "LS-CLUSTER-VALUE", {"TASKS", row.place});
  }
}

RC_GTEST_PROP(TasksPerNode, AreReadAsTheyAreWritten, ()) {
  const auto groups = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::pair<int64_t, int64_t>>>(
      rc::gen::pair(rc::gen::inRange<int64_t>(1, 9), rc::gen::inRange<int64_t>(1, 9))));
  std::string text;
  Counts expected;
  for (const auto& [tasks, nodes] : groups) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ",", tasks, nodes == 1 ? "" : fmt::format("(x{})", nodes));
    expected.insert(expected.end(), nodes, tasks);
  }
  RC_ASSERT(counts(text, 1 << 20) == expected);
}

}  // namespace
}  // namespace lockstep::internal
