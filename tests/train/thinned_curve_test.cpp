// Curves of any length in little memory.
#include "lockstep/train/report/thinned_curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace lockstep::internal {
namespace {

TEST(ThinnedCurve, KeepsAllPointsOfAShortCurve) {
  ThinnedCurve curve;
  for (int64_t step = 1; step <= 100; ++step) curve.add(step, 1.0 / static_cast<double>(step));
  const auto points = curve.points();
  ASSERT_EQ(points.size(), 100u);
  EXPECT_EQ(points[0], (CurvePoint{1, 1}));
  EXPECT_EQ(points[99], (CurvePoint{100, 0.01}));
}

TEST(ThinnedCurve, KeepsPeaksAndTheLastPointOfALongCurve) {
  ThinnedCurve curve;
  for (int64_t step = 0; step < 1000003; ++step) {
    curve.add(step, step == 654321 ? 99 : step == 123456 ? -99 : std::sin(static_cast<double>(step)));
  }
  const auto points = curve.points();
  EXPECT_LE(points.size(), 501u);
  EXPECT_GE(points.size(), 250u);
  EXPECT_TRUE(std::is_sorted(points.begin(), points.end(), [](auto& a, auto& b) { return a.step < b.step; }));
  EXPECT_EQ(std::count(points.begin(), points.end(), CurvePoint{654321, 99}), 1);
  EXPECT_EQ(std::count(points.begin(), points.end(), CurvePoint{123456, -99}), 1);
  EXPECT_EQ(points.back().step, 1000002);
}

TEST(ThinnedCurve, GoesOnFromItsJsonAsIfItHadNotStopped) {
  ThinnedCurve whole;
  ThinnedCurve resumed;
  for (int64_t step = 0; step < 5000; ++step) {
    const double value = step == 17 ? std::numeric_limits<double>::quiet_NaN() : std::cos(static_cast<double>(step));
    whole.add(step, value);
    resumed.add(step, value);
    if (step % 611 == 0) resumed = ThinnedCurve::from_json(nlohmann::json::parse(resumed.to_json().dump()));
  }
  EXPECT_EQ(resumed.points(), whole.points());
  EXPECT_EQ(resumed.not_finite_at(), 17);
}

TEST(ThinnedCurve, SaysWhereItWasNotFiniteFirst) {
  ThinnedCurve curve;
  EXPECT_TRUE(curve.empty());
  EXPECT_TRUE(curve.points().empty());
  curve.add(3, std::numeric_limits<double>::infinity());
  curve.add(4, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(curve.empty());
  EXPECT_EQ(curve.not_finite_at(), 3);
  curve.add(5, 1);
  EXPECT_EQ(curve.points(), std::vector<CurvePoint>({{5, 1}}));
}

TEST(ThinnedCurve, TakesStepsThatAreFarApart) {
  ThinnedCurve curve;
  for (int64_t i = 0; i < 300; ++i) curve.add(i * 1000000, static_cast<double>(i));
  EXPECT_LE(curve.points().size(), 501u);
  EXPECT_EQ(curve.points().back(), (CurvePoint{299000000, 299}));
}

}  // namespace
}  // namespace lockstep::internal
