#include "lockstep/data/formats/image_resizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace lockstep::internal {

namespace {

/// What one pixel of the result is made of: `weights` from pixel `first` on.
struct Taps {
  int64_t first = 0;
  std::vector<float> weights = {};
};

std::vector<Taps> taps_of(const Axis& axis) {
  const double scale = static_cast<double>(axis.size) / static_cast<double>(axis.scaled);
  const double reach = std::max(scale, 1.0);
  std::vector<Taps> all(static_cast<std::size_t>(axis.count));
  for (int64_t i = 0; i < axis.count; ++i) {
    Taps& taps = all[static_cast<std::size_t>(i)];
    const double center = (static_cast<double>(axis.begin + i) + 0.5) * scale;
    taps.first = std::clamp<int64_t>(std::lround(center - reach), 0, axis.size - 1);
    const int64_t end = std::clamp<int64_t>(std::lround(center + reach), taps.first + 1, axis.size);
    double sum = 0;
    std::vector<double> weights;
    for (int64_t j = taps.first; j < end; ++j) {
      weights.push_back(std::max(0.0, 1.0 - std::abs(static_cast<double>(j) + 0.5 - center) / reach));
      sum += weights.back();
    }
    for (const double weight : weights) taps.weights.push_back(static_cast<float>(sum > 0 ? weight / sum : 0));
    if (!(sum > 0)) taps.weights[0] = 1;
  }
  return all;
}

/// The first pixel that any of them takes from, and the one behind the last.
std::pair<int64_t, int64_t> reach_of(const std::vector<Taps>& all) {
  int64_t first = INT64_MAX;
  int64_t end = 0;
  for (const Taps& taps : all) {
    first = std::min(first, taps.first);
    end = std::max(end, taps.first + static_cast<int64_t>(taps.weights.size()));
  }
  return {std::min(first, end), end};
}

/// A window of an image that is not scaled.
Pixels window_of(const Pixels& image, const Axis& rows, const Axis& columns) {
  const auto line = static_cast<std::size_t>(columns.count) * 3;
  Pixels result{rows.count, columns.count, {}};
  result.bytes.reserve(static_cast<std::size_t>(rows.count) * line);
  for (int64_t y = rows.begin; y < rows.begin + rows.count; ++y) {
    result.bytes.append(image.bytes, static_cast<std::size_t>((y * image.width + columns.begin) * 3), line);
  }
  return result;
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

Pixels scaled_window(const Pixels& image, const Axis& rows, const Axis& columns) {
  if (rows.size == rows.scaled && columns.size == columns.scaled) return window_of(image, rows, columns);
  const std::vector<Taps> across = taps_of(columns);
  const auto [first, end] = reach_of(across);
  const auto wide = static_cast<std::size_t>(end - first) * 3;
  Pixels result{rows.count, columns.count, std::string(static_cast<std::size_t>(rows.count * columns.count) * 3, '\0')};
  auto* out = reinterpret_cast<unsigned char*>(result.bytes.data());
  std::vector<float> sums(wide);  // a row of the result that is not scaled across yet
  for (const Taps& taps : taps_of(rows)) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    const auto* from =
        reinterpret_cast<const unsigned char*>(image.bytes.data()) + (taps.first * image.width + first) * 3;
    for (const float weight : taps.weights) {
      for (std::size_t i = 0; i < wide; ++i) sums[i] += weight * static_cast<float>(from[i]);
      from += image.width * 3;
    }
    for (const Taps& pixel : across) {
      const float* at = sums.data() + (pixel.first - first) * 3;
      float red = 0;
      float green = 0;
      float blue = 0;
      for (const float weight : pixel.weights) {
        red += weight * at[0];
        green += weight * at[1];
        blue += weight * at[2];
        at += 3;
      }
      *out++ = rounded(red);
      *out++ = rounded(green);
      *out++ = rounded(blue);
    }
  }
  return result;
}

}  // namespace lockstep::internal
