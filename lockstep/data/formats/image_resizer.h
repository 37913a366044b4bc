// Bilinear scaling of images.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/data/formats/image_decoder.h"

namespace lockstep::internal {

/// One axis of a scaled image: `size` pixels become `scaled` ones, of which those from `begin` on, `count` of them, are
/// wanted.
struct Axis {
  int64_t size = 0;
  int64_t scaled = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

/// A window of the scaled image, as `rows.count` rows of red, green and blue. Where it shrinks, a pixel is the weighted
/// mean of all those that it covers (a triangle of two pixels' width), so that nothing is left out between; an axis
/// that is not scaled keeps its bytes. Only +, -, * and / of IEEE numbers are used: the bytes are the same on every
/// machine.
Pixels scaled_window(const Pixels& image, const Axis& rows, const Axis& columns);

/// The window that covers `height` x `width` from the middle of an image, which is scaled until it covers them.
struct Window {
  Axis rows;
  Axis columns;
};
Window covering_window(int64_t image_height, int64_t image_width, int64_t height, int64_t width);

}  // namespace lockstep::internal
