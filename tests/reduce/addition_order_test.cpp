#include "lockstep/reduce/addition_order.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::internal {
namespace {

std::string tree_of(int64_t count) {
  return fold_in_tree_order(
      0, count, [](int64_t i) { return std::to_string(i); },
      [](const std::string& a, const std::string& b) { return "(" + a + b + ")"; });
}

TEST(AdditionOrder, SplitsAtTheLargestPowerOfTwoBelow) {
  EXPECT_EQ(tree_of(1), "0");
  EXPECT_EQ(tree_of(2), "(01)");
  EXPECT_EQ(tree_of(3), "((01)2)");
  EXPECT_EQ(tree_of(4), "((01)(23))");
  EXPECT_EQ(tree_of(5), "(((01)(23))4)");
  EXPECT_EQ(tree_of(6), "(((01)(23))(45))");
  EXPECT_EQ(tree_of(7), "(((01)(23))((45)6))");
  EXPECT_EQ(tree_of(8), "(((01)(23))((45)(67)))");
  EXPECT_EQ(tree_of(12), "((((01)(23))((45)(67)))((89)(1011)))");
}

TEST(AdditionOrder, GivesAnAlignedBlockTheSameTreeWhereverItStands) {
  const auto leaf = [](int64_t i) { return std::to_string(i % 4); };
  const auto add = [](const std::string& a, const std::string& b) { return "(" + a + b + ")"; };
  EXPECT_EQ(fold_in_tree_order(0, 4, leaf, add), fold_in_tree_order(4, 4, leaf, add));
}

}  // namespace
}  // namespace lockstep::internal
