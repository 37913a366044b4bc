#include "lockstep/data/formats/image_resizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

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
    taps.first = std::clamp<int64_t>(static_cast<int64_t>(center - reach + 0.5), 0, axis.size - 1);
    const int64_t end = std::clamp<int64_t>(static_cast<int64_t>(center + reach + 0.5), taps.first + 1, axis.size);
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
  const std::vector<Taps> across = taps_of(columns);
  const std::vector<Taps> down = taps_of(rows);
  int64_t first = image.height;
  int64_t end = 0;
  for (const Taps& taps : down) {
    first = std::min(first, taps.first);
    end = std::max(end, taps.first + static_cast<int64_t>(taps.weights.size()));
  }
  const auto line = static_cast<std::size_t>(columns.count) * 3;
  // The rows that are needed, scaled across.
  std::vector<float> scaled(static_cast<std::size_t>(std::max<int64_t>(end - first, 0)) * line);
  float* to = scaled.data();
  for (int64_t y = first; y < end; ++y) {
    const auto* const row = reinterpret_cast<const unsigned char*>(image.bytes.data()) + y * image.width * 3;
    for (const Taps& taps : across) {
      const unsigned char* from = row + taps.first * 3;
      float red = 0;
      float green = 0;
      float blue = 0;
      for (const float weight : taps.weights) {
        red += weight * static_cast<float>(from[0]);
        green += weight * static_cast<float>(from[1]);
        blue += weight * static_cast<float>(from[2]);
        from += 3;
      }
      *to++ = red;
      *to++ = green;
      *to++ = blue;
    }
  }
  Pixels result{rows.count, columns.count, std::string(static_cast<std::size_t>(rows.count) * line, '\0')};
  auto* out = reinterpret_cast<unsigned char*>(result.bytes.data());
  std::vector<float> sums(line);
  for (const Taps& taps : down) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    const float* from = scaled.data() + static_cast<std::size_t>(taps.first - first) * line;
    for (const float weight : taps.weights) {
      for (std::size_t i = 0; i < line; ++i) sums[i] += weight * from[i];
      from += line;
    }
    out = std::transform(sums.begin(), sums.end(), out, &rounded);
  }
  return result;
}

}  // namespace lockstep::internal
