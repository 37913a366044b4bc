// The table of variables: it is always short, and complete where that is possible.
#include "lockstep/variable/variable_table.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>

namespace lockstep::internal {
namespace {

VariableRow row(const std::string& name, const std::string& kind = "mirrored") {
  return {.name = name, .kind = kind, .shape = "Float [2]", .bytes = 8, .where = "cpu"};
}

std::vector<std::string> names(const std::vector<VariableRow>& rows) {
  std::vector<std::string> result;
  for (const VariableRow& one : rows) result.push_back(one.name);
  return result;
}

int64_t variables_in(const std::vector<VariableRow>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0},
                         [](int64_t sum, const auto& one) { return sum + one.count; });
}

TEST(VariableTable, ShowsEachVariableWhereThereIsRoom) {
  const std::vector<VariableRow> rows{row("a.b.c"), row("a.b.d"), row("e")};
  EXPECT_EQ(names(shortened(rows, 3)), (std::vector<std::string>{"a.b.c", "a.b.d", "e"}));
}

TEST(VariableTable, TakesLongestCommonBeginningsTogetherAndSumsThem) {
  const std::vector<VariableRow> rows{row("m.one.w"), row("m.one.b"), row("m.two.w"), row("m.two.b"), row("v")};
  const auto short_ones = shortened(rows, 4);
  EXPECT_EQ(names(short_ones), (std::vector<std::string>{"m.one.*", "m.two.*", "v"}));
  EXPECT_EQ(short_ones[0].shape, "2 variables");
  EXPECT_EQ(short_ones[0].bytes, 16);
  EXPECT_EQ(names(shortened(rows, 2)), (std::vector<std::string>{"m.*", "v"}));
}

TEST(VariableTable, KeepsKindsApartAndLoneNamesWhole) {
  const auto rows = shortened({row("m.one.w"), row("m.one.mean", "on-read mean"), row("m.one.b")}, 2);
  EXPECT_EQ(names(rows), (std::vector<std::string>{"m.one.*", "m.one.mean"}));
}

TEST(VariableTable, CutsWhatHasNoCommonBeginningsAndCountsIt) {
  std::vector<VariableRow> rows;
  for (int i = 0; i < 1000; ++i) rows.push_back(row("v" + std::to_string(i)));
  const auto short_ones = shortened(rows, 10);
  EXPECT_EQ(short_ones.size(), 10u);
  EXPECT_EQ(short_ones.back().shape, "991 variables");
  EXPECT_EQ(variables_in(short_ones), 1000);
}

TEST(VariableTable, NeverLosesAVariableNorGrowsLong) {
  std::vector<VariableRow> rows;
  for (int layer = 0; layer < 30; ++layer) {
    for (const char* part : {"conv1.weight", "bn1.weight", "bn1.bias", "weight"}) {
      rows.push_back(row("model.layer" + std::to_string(layer) + "." + part));
      rows.push_back(row("model.layer" + std::to_string(layer) + "." + part + "/exp_avg", "slot"));
    }
  }
  for (std::size_t limit = 1; limit < 260; ++limit) {
    const auto short_ones = shortened(rows, limit);
    EXPECT_LE(short_ones.size(), limit);
    EXPECT_EQ(variables_in(short_ones), 240);
  }
}

TEST(VariableTable, IsWrittenInColumnsWithTheSum) {
  VariableRow big = row("model.embedding");
  big.bytes = 3 << 20;
  big.copies = 4;
  EXPECT_EQ(table_of({big, row("v", "on-read sum")}),
            "variable         kind         shape        bytes  copies  where\n"
            "model.embedding  mirrored     Float [2]  3.0 MiB       4  cpu\n"
            "v                on-read sum  Float [2]      8 B       1  cpu\n"
            "2 variables, 3.0 MiB in one copy of each\n");
  EXPECT_NE(table_of({}).find("0 variables"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::internal
