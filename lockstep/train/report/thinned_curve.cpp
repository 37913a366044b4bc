#include "lockstep/train/report/thinned_curve.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace lockstep::internal::inline train {

void ThinnedCurve::add(int64_t step, double value) {
  if (!std::isfinite(value)) {
    if (!not_finite_at_) not_finite_at_ = step;
    return;
  }
  last_ = CurvePoint{step, value};
  add_to_ranges(*last_);
  if (ranges_.size() > kMostRanges) halve();
}

void ThinnedCurve::add_to_ranges(const CurvePoint& point) {
  const int64_t number = point.step / width_;
  if (ranges_.empty() || ranges_.back().number != number) {
    ranges_.push_back({number, point, point});
    return;
  }
  Range& range = ranges_.back();
  if (point.value < range.least.value) range.least = point;
  if (point.value > range.greatest.value) range.greatest = point;
}

void ThinnedCurve::halve() {
  // One pass is enough unless steps are far apart.
  while (ranges_.size() > kMostRanges) {
    width_ *= 2;
    const std::vector<Range> narrow = std::exchange(ranges_, {});
    for (const Range& range : narrow) {
      const bool least_first = range.least.step <= range.greatest.step;
      add_to_ranges(least_first ? range.least : range.greatest);
      add_to_ranges(least_first ? range.greatest : range.least);
    }
  }
}

std::vector<CurvePoint> ThinnedCurve::points() const {
  std::vector<CurvePoint> points;
  for (const Range& range : ranges_) {
    const bool least_first = range.least.step <= range.greatest.step;
    points.push_back(least_first ? range.least : range.greatest);
    if (range.least != range.greatest) points.push_back(least_first ? range.greatest : range.least);
  }
  if (last_ && points.back() != *last_) points.push_back(*last_);
  return points;
}

nlohmann::json ThinnedCurve::to_json() const {
  nlohmann::json flat = nlohmann::json::array();
  for (const CurvePoint& point : points()) {
    flat.push_back(point.step);
    flat.push_back(point.value);
  }
  nlohmann::json json{{"width", width_}, {"points", std::move(flat)}};
  if (not_finite_at_) json["not_finite_at"] = *not_finite_at_;
  return json;
}

ThinnedCurve ThinnedCurve::from_json(const nlohmann::json& json) {
  ThinnedCurve curve;
  curve.width_ = std::max<int64_t>(json.at("width").get<int64_t>(), 1);
  const nlohmann::json& flat = json.at("points");
  for (std::size_t i = 0; i + 1 < flat.size(); i += 2) {
    curve.last_ = CurvePoint{flat.at(i).get<int64_t>(), flat.at(i + 1).get<double>()};
    curve.add_to_ranges(*curve.last_);
  }
  if (json.contains("not_finite_at")) curve.not_finite_at_ = json.at("not_finite_at").get<int64_t>();
  return curve;
}

}  // namespace lockstep::internal::train
