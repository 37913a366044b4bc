#include "lockstep/train/report/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/train/report/html_text.h"

namespace lockstep::internal::inline train {

namespace {

// The drawing, in units of its own: the box of the lines leaves room for ticks on the left, names on the right.
constexpr double kWidth = 640;
constexpr double kHeight = 300;
constexpr double kLeft = 66;
constexpr double kRight = 520;
constexpr double kTop = 16;
constexpr double kBottom = 262;
constexpr double kBetweenNames = 20;

/// The axes of a chart.
struct Axes {
  double first_step = 0;
  double last_step = 1;
  double low = 0;
  double high = 1;

  double x(double step) const { return kLeft + (step - first_step) / (last_step - first_step) * (kRight - kLeft); }
  double y(double value) const { return kBottom - (value - low) / (high - low) * (kBottom - kTop); }
};

Axes axes_of(const LineChart& chart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Axes axes{kInfinity, -kInfinity, kInfinity, -kInfinity};
  for (const ChartLine& line : chart.lines) {
    for (const CurvePoint& point : line.points) {
      const auto step = static_cast<double>(point.step);
      axes.first_step = std::min(axes.first_step, step);
      axes.last_step = std::max(axes.last_step, step);
      axes.low = std::min(axes.low, point.value);
      axes.high = std::max(axes.high, point.value);
    }
  }
  if (axes.last_step == axes.first_step) axes.last_step += 1;
  const bool is_from_zero = chart.from_zero && axes.low >= 0;
  if (is_from_zero) axes.low = 0;
  // Some room above and below; where all values are equal, as much as they are.
  double room = (axes.high - axes.low) / 20;
  if (!(room > 0)) room = std::max(std::abs(axes.high) / 2, 1e-9);
  axes.high += room;
  if (!is_from_zero) axes.low -= room;
  return axes;
}

/// A tick's text: as many digits as tell it from its neighbours.
std::string tick_text(double value, double step) {
  if (std::abs(value) < step / 1e6) return "0";
  if (std::abs(value) >= 1e5 || std::abs(value) < 1e-3) return fmt::format("{:.3g}", value);
  const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return digits == 0 ? whole_number(std::llround(value)) : fmt::format("{:.{}f}", value, std::min(digits, 6));
}

std::string grid_of(const Axes& axes) {
  std::string svg;
  const std::vector<double> values = round_ticks(axes.low, axes.high, 5);
  const double apart = values.size() > 1 ? values[1] - values[0] : 1;
  for (const double value : values) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
        kLeft, kRight, axes.y(value), axes.y(value), kLeft - 8, axes.y(value) + 4.5, tick_text(value, apart));
  }
  const std::vector<double> steps = round_ticks(axes.first_step, axes.last_step, 5);
  for (const double step : steps) {
    if (step != std::floor(step)) continue;
    svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", axes.x(step),
                       kBottom + 22, whole_number(std::llround(step)));
  }
  return svg;
}

std::string marks_of(const LineChart& chart, const Axes& axes) {
  std::string svg;
  double word_y = kTop + 12;
  for (const ChartMark& mark : chart.marks) {
    const auto step = static_cast<double>(mark.step);
    if (step < axes.first_step || step > axes.last_step) continue;
    const double x = axes.x(step);
    const bool is_right = x > (kLeft + kRight) / 2;
    svg += fmt::format(
        "<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text class=\"tick\" x=\"{3:.1f}\" y=\"{4}\" text-anchor=\"{5}\">{6}</text>",
        x, kTop, kBottom, x + (is_right ? -5 : 5), word_y, is_right ? "end" : "start", escaped(mark.word));
    word_y = word_y > kTop + 40 ? kTop + 12 : word_y + 16;  // words of neighbours do not cover each other
  }
  return svg;
}

std::string line_of(const ChartLine& line, const Axes& axes) {
  std::string points;
  for (const CurvePoint& point : line.points) {
    points += fmt::format("{:.1f},{:.1f} ", axes.x(static_cast<double>(point.step)), axes.y(point.value));
  }
  std::string svg = fmt::format("<polyline class=\"line s{}\" points=\"{}\"/>", line.style, points);
  if (!line.has_dots && line.points.size() > 1) return svg;
  for (const CurvePoint& point : line.points) {
    svg += fmt::format("<circle class=\"dot s{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>", line.style,
                       axes.x(static_cast<double>(point.step)), axes.y(point.value));
  }
  return svg;
}

/// The names at the ends of their lines, apart from each other and within the drawing.
std::string names_of(const LineChart& chart, const Axes& axes) {
  std::vector<std::pair<double, const ChartLine*>> ends;
  for (const ChartLine& line : chart.lines) {
    if (!line.points.empty()) ends.emplace_back(axes.y(line.points.back().value), &line);
  }
  std::stable_sort(ends.begin(), ends.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 1; i < ends.size(); ++i)
    ends[i].first = std::max(ends[i].first, ends[i - 1].first + kBetweenNames);
  double lowest = kBottom;
  for (std::size_t i = ends.size(); i-- > 0; lowest -= kBetweenNames) ends[i].first = std::min(ends[i].first, lowest);
  std::string svg;
  for (const auto& [y, line] : ends) {
    svg += fmt::format("<text class=\"name s{}\" x=\"{}\" y=\"{:.1f}\">{}</text>", line->style, kRight + 8, y + 5,
                       escaped(line->name));
  }
  return svg;
}

}  // namespace

bool has_points(const LineChart& chart) {
  return std::any_of(chart.lines.begin(), chart.lines.end(),
                     [](const ChartLine& line) { return !line.points.empty(); });
}

std::vector<double> round_ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  if (!(raw > 0) || !std::isfinite(raw)) return {low};
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double apart = power;
  for (const double times : {2.0, 5.0, 10.0}) {
    if (std::abs(times * power - raw) < std::abs(apart - raw)) apart = times * power;
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / apart - 1e-9); i * apart <= high + apart * 1e-9; ++i) ticks.push_back(i * apart);
  return ticks;
}

std::string chart_html(const LineChart& chart) {
  const std::string title = escaped(chart.title);
  if (!has_points(chart)) {
    return fmt::format("<figure><figcaption>{}</figcaption><p class=\"soft\">No value was logged.</p></figure>", title);
  }
  const Axes axes = axes_of(chart);
  std::string label;
  for (const ChartLine& line : chart.lines) {
    if (line.points.empty()) continue;
    label += fmt::format("{}{} from {} to {}", label.empty() ? ": " : "; ", escaped(line.name),
                         short_number(line.points.front().value), short_number(line.points.back().value));
  }
  std::string html = fmt::format(
      "<figure class=\"chart\" data-chart=\"{}\"><figcaption>{}</figcaption>"
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" tabindex=\"0\" aria-label=\"{}{}\">",
      escaped(chart.key), title, kWidth, kHeight, title, label);
  html += grid_of(axes) + marks_of(chart, axes);
  for (const ChartLine& line : chart.lines) {
    if (!line.points.empty()) html += line_of(line, axes);
  }
  return html + names_of(chart, axes) + "<g class=\"pointer\"></g></svg><output></output></figure>";
}

nlohmann::json chart_data(const LineChart& chart) {
  const Axes axes = axes_of(chart);
  nlohmann::json lines = nlohmann::json::array();
  for (const ChartLine& line : chart.lines) {
    if (!line.points.empty()) lines.push_back({{"name", line.name}, {"part", line.part}, {"curve", line.curve}});
  }
  return {{"box", {kLeft, kTop, kRight, kBottom}},
          {"steps", {axes.first_step, axes.last_step}},
          {"values", {axes.low, axes.high}},
          {"lines", std::move(lines)}};
}

}  // namespace lockstep::internal::train
