// Digits drawn as strokes. Only +, -, *, / and square roots of IEEE numbers are used, so that the pixels are the same
// bits on every machine; library functions, whose precision differs between machines, are not.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/sources/sources.h"

namespace lockstep::data {

namespace {

constexpr int kSide = 28;

struct Point {
  float x;
  float y;
};
using Stroke = std::vector<Point>;

/// The ten digits as polylines in the unit square, y downwards.
const std::vector<std::vector<Stroke>>& glyphs() {
  static const std::vector<std::vector<Stroke>> all{
      {{{.5f, .0f},
        {.2f, .12f},
        {.1f, .5f},
        {.2f, .88f},
        {.5f, 1.f},
        {.8f, .88f},
        {.9f, .5f},
        {.8f, .12f},
        {.5f, .0f}}},
      {{{.3f, .2f}, {.55f, .0f}, {.55f, 1.f}}},
      {{{.12f, .25f}, {.3f, .04f}, {.65f, .02f}, {.85f, .22f}, {.75f, .5f}, {.1f, 1.f}, {.9f, 1.f}}},
      {{{.15f, .05f}, {.6f, .0f}, {.85f, .22f}, {.65f, .45f}, {.4f, .47f}},
       {{.4f, .47f}, {.75f, .53f}, {.88f, .75f}, {.6f, .99f}, {.1f, .93f}}},
      {{{.65f, 1.f}, {.65f, .0f}, {.08f, .68f}, {.95f, .68f}}},
      {{{.85f, .0f}, {.2f, .0f}, {.15f, .45f}, {.55f, .38f}, {.88f, .6f}, {.75f, .93f}, {.4f, 1.f}, {.08f, .88f}}},
      {{{.8f, .06f},
        {.45f, .05f},
        {.15f, .45f},
        {.12f, .8f},
        {.45f, 1.f},
        {.8f, .9f},
        {.85f, .62f},
        {.5f, .45f},
        {.15f, .62f}}},
      {{{.08f, .0f}, {.92f, .0f}, {.4f, 1.f}}},
      {{{.5f, .47f},
        {.2f, .3f},
        {.25f, .06f},
        {.5f, .0f},
        {.75f, .06f},
        {.8f, .3f},
        {.5f, .47f},
        {.15f, .7f},
        {.2f, .93f},
        {.5f, 1.f},
        {.8f, .93f},
        {.85f, .7f},
        {.5f, .47f}}},
      {{{.85f, .35f}, {.5f, .53f}, {.18f, .38f}, {.2f, .08f}, {.55f, .0f}, {.85f, .15f}, {.85f, .5f}, {.7f, 1.f}}},
  };
  return all;
}

/// SplitMix64: small, and good enough for drawing.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  /// In [low, high).
  float uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(bits() >> 40) * (1.0f / 16777216.0f));
  }

 private:
  uint64_t state_;
};

float distance_to_segment(Point p, Point a, Point b) {
  const float dx = b.x - a.x;
  const float dy = b.y - a.y;
  const float length = dx * dx + dy * dy;
  float t = length > 0 ? ((p.x - a.x) * dx + (p.y - a.y) * dy) / length : 0;
  t = std::min(1.0f, std::max(0.0f, t));
  const float ex = p.x - (a.x + t * dx);
  const float ey = p.y - (a.y + t * dy);
  return std::sqrt(ex * ex + ey * ey);
}

/// Draws one digit into kSide * kSide floats, 0 (black) to 1.
void draw(int digit, Random& random, float* pixels) {
  // A rotation by the angle whose half has tangent t, which needs no cosine.
  const float t = random.uniform(-0.16f, 0.16f);
  const float cosine = (1 - t * t) / (1 + t * t);
  const float sine = 2 * t / (1 + t * t);
  const float width = random.uniform(8.0f, 15.0f);
  const float height = random.uniform(14.0f, 20.0f);
  const float shear = random.uniform(-0.25f, 0.25f);
  const Point center{random.uniform(10.5f, 17.5f), random.uniform(11.0f, 17.0f)};
  const float thickness = random.uniform(0.7f, 1.7f);
  std::vector<Stroke> strokes = glyphs()[static_cast<std::size_t>(digit)];
  for (Stroke& stroke : strokes) {
    for (Point& point : stroke) {
      const float y = (point.y - 0.5f + random.uniform(-0.05f, 0.05f)) * height;
      const float x = (point.x - 0.5f + random.uniform(-0.05f, 0.05f)) * width + shear * y;
      point = {center.x + cosine * x - sine * y, center.y + sine * x + cosine * y};
    }
  }
  const float noise = random.uniform(0.0f, 0.25f);
  for (int row = 0; row < kSide; ++row) {
    for (int column = 0; column < kSide; ++column) {
      const Point pixel{static_cast<float>(column), static_cast<float>(row)};
      float distance = 1e9f;
      for (const Stroke& stroke : strokes) {
        for (std::size_t i = 0; i + 1 < stroke.size(); ++i) {
          distance = std::min(distance, distance_to_segment(pixel, stroke[i], stroke[i + 1]));
        }
      }
      const float ink = std::min(1.0f, std::max(0.0f, thickness + 0.5f - distance));
      const float value = ink + noise * random.uniform(-1.0f, 1.0f);
      pixels[row * kSide + column] = std::min(1.0f, std::max(0.0f, value));
    }
  }
}

Dataset make(int64_t count, uint64_t seed) {
  at::Tensor input = at::empty({count, 1, kSide, kSide}, at::kFloat);
  at::Tensor target = at::empty({count}, at::kLong);
  auto* pixels = input.data_ptr<float>();
  auto* labels = target.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    Random random(seed ^ (static_cast<uint64_t>(i) * 0xd1b54a32d192ed03u));
    random.bits();
    labels[i] = static_cast<int64_t>(random.bits() % 10);
    float* const image = pixels + i * kSide * kSide;
    draw(static_cast<int>(labels[i]), random, image);
    for (int p = 0; p < kSide * kSide; ++p) image[p] = (image[p] - 0.17f) * 3.1f;  // about zero mean, unit variance
  }
  return from_tensors(std::move(input), std::move(target));
}

}  // namespace

Split digits(int64_t train_count, int64_t evaluate_count, uint64_t seed) {
  if (train_count < 0 || evaluate_count < 0) {
    throw UsageError("LS-OPTION", fmt::format("digits was asked for {} and {} images", train_count, evaluate_count),
                     "give numbers from 0");
  }
  return {make(train_count, seed * 2 + 1), make(evaluate_count, seed * 2 + 0x5851f42d4c957f2du)};
}

}  // namespace lockstep::data
