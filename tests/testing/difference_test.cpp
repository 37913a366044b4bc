// Where two recordings differ: the tolerance for one element does not depend on a NaN in another.
#include "lockstep/testing/difference.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>
#include <vector>

namespace lockstep::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

/// A variable that begins as zeros and is `after` after one step.
Recording recording(const char* who, const torch::Tensor& after) {
  RecordedVariable variable{.name = "v", .value = torch::zeros_like(after)};
  Recording result{.who = who, .moments = {{.steps = 0, .variables = {variable}}}};
  variable.value = after;
  result.moments.push_back({.steps = 1, .variables = {variable}});
  return result;
}

bool differ(const std::vector<double>& expected, const std::vector<double>& found) {
  return first_difference(recording("a", torch::tensor(expected)), recording("b", torch::tensor(found)), 1e-3)
      .has_value();
}

TEST(Difference, OneInfinityDoesNotLoosenTheToleranceOfTheOthers) {
  EXPECT_FALSE(differ({kInfinity, 1}, {kInfinity, 1.0005}));
  EXPECT_TRUE(differ({kInfinity, 1}, {kInfinity, 5}));
  EXPECT_TRUE(differ({-kInfinity, 1}, {-kInfinity, 1.01}));
  EXPECT_TRUE(differ({kInfinity, 1}, {-kInfinity, 1}));
  EXPECT_TRUE(differ({kInfinity, 1}, {1, 1}));
}

TEST(Difference, OneNanDoesNotTightenIt) {
  EXPECT_FALSE(differ({kNan, 1}, {kNan, 1.0005}));
  EXPECT_TRUE(differ({kNan, 1}, {kNan, 5}));
  EXPECT_TRUE(differ({kNan, 1}, {1, 1}));
}

}  // namespace
}  // namespace lockstep::internal
