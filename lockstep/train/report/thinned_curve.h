// A curve of any length in little memory.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

namespace lockstep::internal::inline train {

struct CurvePoint {
  int64_t step = 0;
  double value = 0;
  bool operator==(const CurvePoint&) const = default;
};

/// Values by step, of which at most 500 points are kept: of each range of steps the least and the greatest
/// value, with their steps, and the last point of all. So a peak is never lost. As the curve grows, the ranges do.
/// Values that are not finite are counted and not kept.
class ThinnedCurve {
 public:
  /// `step` is from 0, and not before that of the last call.
  void add(int64_t step, double value);
  /// In the order of their steps.
  std::vector<CurvePoint> points() const;
  bool empty() const { return !last_; }
  /// The last finite one.
  std::optional<CurvePoint> last() const { return last_; }
  /// The first step whose value was not finite.
  std::optional<int64_t> not_finite_at() const { return not_finite_at_; }

  /// Everything that it is: {"width": 2, "points": [step, value, step, value, ...]}. A curve that is made of it goes on
  /// as this one would.
  nlohmann::json to_json() const;
  /// Throws what the JSON library throws for anything else.
  static ThinnedCurve from_json(const nlohmann::json& json);

 private:
  struct Range {
    int64_t number = 0;  // of steps number * width_ up to the next range's
    CurvePoint least = {};
    CurvePoint greatest = {};
  };
  static constexpr std::size_t kMostRanges = 250;
  void add_to_ranges(const CurvePoint& point);
  void halve();

  int64_t width_ = 1;
  std::vector<Range> ranges_;
  std::optional<CurvePoint> last_;
  std::optional<int64_t> not_finite_at_;
};

}  // namespace lockstep::internal::train
