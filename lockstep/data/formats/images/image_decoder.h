// PNG and JPEG files as pixels, by libpng and libjpeg-turbo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/core/function_ref.h"
#include "lockstep/data/deal/plan.h"

namespace lockstep::internal::inline data {

/// An image, or a part of it: rows of red, green and blue.
struct Pixels {
  int64_t height = 0;  // of the whole image
  int64_t width = 0;
  Span rows = {};  // what is here
  Span columns = {};
  std::string bytes = {};  // rows.size() * columns.size() * 3

  /// Pixel (row, column), which is here.
  const unsigned char* at(int64_t row, int64_t column) const {
    return reinterpret_cast<const unsigned char*>(bytes.data()) +
           3 * ((row - rows.begin) * columns.size() + column - columns.begin);
  }
};

/// Is given an image's height and width, with all rows and columns, and makes these fewer where fewer are wanted.
using ChoosePart = FunctionRef<void(Pixels&)>;

/// Why bytes are no image; who reads them says which file.
class ImageDamage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Decodes a PNG or JPEG file, whichever its first bytes say. Grey becomes red, green and blue, 16 bits become the
/// upper 8, transparency is left out; CMYK becomes RGB as if the inks were filters; a turn in the Exif data is not
/// looked at. Throws an ImageDamage for anything else, for an image that is cut off or damaged, and for one that says
/// it has more than `max_pixels`, before memory is taken for them. The result has at least the rows and columns that
/// `choose` leaves, with the same bits as the whole image has there; damage is found in all of the file. The pixels lie
/// in `memory`, which grows where it is too small.
Pixels decode_pixels(std::string_view file, int64_t max_pixels, ChoosePart choose, std::string memory = {});

// Of one format each.
Pixels decode_png(std::string_view file, int64_t max_pixels, std::string memory);
Pixels decode_jpeg(std::string_view file, int64_t max_pixels, ChoosePart choose, std::string memory);

/// An image of this size, without its bytes. Throws an ImageDamage unless it may be decoded.
Pixels image_of(int64_t height, int64_t width, int64_t max_pixels);

/// Memory to begin with: what the rows and columns need, as far as a file of these bytes is likely to hold them.
std::size_t expected_bytes(const Pixels& image, std::string_view file);

}  // namespace lockstep::internal::data
