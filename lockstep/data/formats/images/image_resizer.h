// Bilinear scaling of images.
#pragma once

#include <cstdint>

#include "lockstep/core/function_ref.h"
#include "lockstep/data/deal/plan.h"
#include "lockstep/data/formats/images/image_decoder.h"

namespace lockstep::internal::inline data {

/// One axis of a scaled image: `size` pixels become `scaled` ones, of which those from `begin` on, `count` of them, are
/// wanted.
struct Axis {
  int64_t size = 0;
  int64_t scaled = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

/// A window of a scaled image.
struct Window {
  Axis rows;
  Axis columns;
};
/// The window that covers `height` x `width` from the middle of an image, which is scaled until it covers them.
Window covering_window(int64_t image_height, int64_t image_width, int64_t height, int64_t width);

/// The pixels of the axis that the wanted ones are made of.
Span reach_of(const Axis& axis);

/// Calls `use(row)` with each row of the window, as red, green and blue. The image has at least what the window is made
/// of. Where the window shrinks it, a pixel is the weighted mean of all those that it covers (a triangle of two pixels'
/// width), so that nothing is left out between; an axis that is not scaled keeps its bytes. Only +, -, * and / of IEEE
/// numbers are used: the bytes are the same on every machine.
void for_each_row(const Pixels& image, const Window& window, FunctionRef<void(const unsigned char*)> use);

}  // namespace lockstep::internal::data
