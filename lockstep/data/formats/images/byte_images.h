// Images as bytes, and the step from bytes to numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::internal::inline data {

/// (byte / 255 - mean) / deviation for each channel and byte, computed once, so that the bits are the same wherever it
/// is used.
class PixelTable {
 public:
  PixelTable(const std::array<float, 3>& mean, const std::array<float, 3>& deviation) {
    for (std::size_t channel = 0; channel < 3; ++channel) {
      for (std::size_t byte = 0; byte < 256; ++byte) {
        values_[channel][byte] = (static_cast<float>(byte) / 255.0f - mean[channel]) / deviation[channel];
      }
    }
  }

  /// Three planes of `pixels` bytes each, plane by plane.
  void apply(const unsigned char* planes, int64_t pixels, float* to) const {
    for (const auto& channel : values_) {
      for (int64_t i = 0; i < pixels; ++i) *to++ = channel[*planes++];
    }
  }

  /// `pixels` times red, green and blue, as three planes that lie `plane` elements apart.
  void apply_to_pixels(const unsigned char* from, int64_t pixels, float* to, int64_t plane) const {
    for (int64_t i = 0; i < pixels; ++i, from += 3) {
      to[i] = values_[0][from[0]];
      to[i + plane] = values_[1][from[1]];
      to[i + 2 * plane] = values_[2][from[2]];
    }
  }

 private:
  std::array<std::array<float, 256>, 3> values_{};
};

}  // namespace lockstep::internal::data
