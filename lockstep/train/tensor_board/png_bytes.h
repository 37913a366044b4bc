// Images as PNG files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace lockstep::internal::inline train {

/// A PNG file of an image by rows, [height, width, channels]: 1 channel is grey, 3 are red, green and blue, 4 also
/// opacity. Throws a UsageError (LS-SHAPE) for other channels, or where the sizes do not go with the pixels.
std::string png_bytes(std::span<const uint8_t> pixels, int64_t width, int64_t height, int64_t channels);

}  // namespace lockstep::internal::train
