#include "lockstep/data/formats/images/image_resizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace lockstep::internal::inline data {

namespace {

/// How pixels of a scaled axis lie on those of the image.
struct Scale {
  explicit Scale(const Axis& of)
      : axis(of), step(static_cast<double>(of.size) / static_cast<double>(of.scaled)), reach(std::max(step, 1.0)) {}
  double center(int64_t i) const { return (static_cast<double>(axis.begin + i) + 0.5) * step; }
  /// The pixels that wanted pixel `i` is made of.
  Span pixels_of(int64_t i) const {
    const int64_t first = std::clamp<int64_t>(std::lround(center(i) - reach), 0, axis.size - 1);
    return {first, std::clamp<int64_t>(std::lround(center(i) + reach), first + 1, axis.size)};
  }

  const Axis axis;
  const double step;
  const double reach;
};

/// What one pixel of the result is made of: weights[at] of pixel `first`, and so on.
struct Taps {
  int64_t first = 0;
  int64_t count = 0;
  std::size_t at = 0;
};
struct AllTaps {
  std::vector<Taps> pixels = {};
  std::vector<float> weights = {};
};

AllTaps taps_of(const Axis& axis) {
  const Scale scale(axis);
  AllTaps all;
  std::vector<double> weights;
  for (int64_t i = 0; i < axis.count; ++i) {
    const Span from = scale.pixels_of(i);
    all.pixels.push_back({from.begin, from.size(), all.weights.size()});
    double sum = 0;
    weights.clear();
    for (int64_t j = from.begin; j < from.end; ++j) {
      weights.push_back(std::max(0.0, 1.0 - std::abs(static_cast<double>(j) + 0.5 - scale.center(i)) / scale.reach));
      sum += weights.back();
    }
    for (const double weight : weights) all.weights.push_back(static_cast<float>(sum > 0 ? weight / sum : 0));
    if (!(sum > 0)) all.weights[all.pixels.back().at] = 1;
  }
  return all;
}

unsigned char rounded(float value) { return static_cast<unsigned char>(std::clamp(value + 0.5f, 0.0f, 255.0f)); }

}  // namespace

Window covering_window(int64_t image_height, int64_t image_width, int64_t height, int64_t width) {
  const double factor = std::max(static_cast<double>(height) / static_cast<double>(image_height),
                                 static_cast<double>(width) / static_cast<double>(image_width));
  const auto axis = [factor](int64_t size, int64_t count) {
    const auto scaled = std::max(count, static_cast<int64_t>(std::floor(static_cast<double>(size) * factor + 0.5)));
    return Axis{size, scaled, (scaled - count) / 2, count};
  };
  return {axis(image_height, height), axis(image_width, width)};
}

Span reach_of(const Axis& axis) {
  if (axis.size == axis.scaled) return {axis.begin, axis.begin + axis.count};
  const Scale scale(axis);
  return {scale.pixels_of(0).begin, scale.pixels_of(axis.count - 1).end};
}

void for_each_row(const Pixels& image, const Window& window, FunctionRef<void(const unsigned char*)> use) {
  const Axis& rows = window.rows;
  const Axis& columns = window.columns;
  if (rows.size == rows.scaled && columns.size == columns.scaled) {
    for (int64_t y = rows.begin; y < rows.begin + rows.count; ++y) use(image.at(y, columns.begin));
    return;
  }
  const AllTaps down = taps_of(rows);
  const AllTaps across = taps_of(columns);
  const Span reach = reach_of(columns);
  std::vector<float> sums(static_cast<std::size_t>(reach.size()) * 3);  // a row that is not scaled across yet
  std::vector<unsigned char> row(static_cast<std::size_t>(columns.count) * 3);
  for (const Taps& taps : down.pixels) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t j = 0; j < taps.count; ++j) {
      const float weight = down.weights[taps.at + static_cast<std::size_t>(j)];
      const unsigned char* const from = image.at(taps.first + j, reach.begin);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += weight * static_cast<float>(from[i]);
    }
    unsigned char* to = row.data();
    for (const Taps& pixel : across.pixels) {
      const float* at = sums.data() + (pixel.first - reach.begin) * 3;
      const float* const weights = across.weights.data() + pixel.at;
      float red = 0;
      float green = 0;
      float blue = 0;
      for (int64_t j = 0; j < pixel.count; ++j, at += 3) {
        red += weights[j] * at[0];
        green += weights[j] * at[1];
        blue += weights[j] * at[2];
      }
      *to++ = rounded(red);
      *to++ = rounded(green);
      *to++ = rounded(blue);
    }
    use(row.data());
  }
}

}  // namespace lockstep::internal::data
