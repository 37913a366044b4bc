// Line charts as SVG, which needs no script to be seen.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/train/report/thinned_curve.h"

namespace lockstep::internal::inline train {

struct ChartLine {
  std::string name = {};                // stands at the line's end
  std::vector<CurvePoint> points = {};  // finite, in the order of their steps
  /// Where the run's JSON has the curve: "curves" or "validation", and the curve's name there.
  std::string part = {};
  std::string curve = {};
  int style = 0;          // 0 to 5: colour and dashes
  bool has_dots = false;  // where points are few, and lines between them mean little
};

/// A vertical line with a word.
struct ChartMark {
  int64_t step = 0;
  std::string word = {};
};

struct LineChart {
  std::string key = {};    // in the page's data
  std::string title = {};  // says what the axes are
  std::vector<ChartLine> lines = {};
  std::vector<ChartMark> marks = {};
  bool from_zero = false;  // the axis begins at 0
};

/// The chart as a figure with a caption; its label for readers who do not see it has the first and the last value of
/// each line. A chart without a point says so.
std::string chart_html(const LineChart& chart);

/// Whether it has anything to draw.
bool has_points(const LineChart& chart);

/// What a script needs to show the value under a pointer, of a chart that has points: the ranges of the axes, where
/// they are in the drawing, and where the run's JSON has the points.
nlohmann::json chart_data(const LineChart& chart);

/// Round numbers from `low` to `high`, about `count` of them.
std::vector<double> round_ticks(double low, double high, int count);

}  // namespace lockstep::internal::train
