// PNG and JPEG files as pixels, by libpng and libjpeg-turbo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep::internal {

/// An image: rows of red, green and blue.
struct Pixels {
  int64_t height = 0;
  int64_t width = 0;
  std::string bytes = {};  // height * width * 3
};

/// Why bytes are no image; who reads them says which file.
class ImageDamage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Decodes a PNG or JPEG file, whichever its first bytes say. Grey becomes red, green and blue, 16 bits become the
/// upper 8, transparency is left out; CMYK becomes RGB as if the inks were filters; a turn in the Exif data is not
/// looked at. Throws an ImageDamage for anything else, for an image that is cut off or damaged, and for one that says
/// it has more than `max_pixels`, before memory is taken for them.
Pixels decode_pixels(std::string_view file, int64_t max_pixels);

// Of one format each.
Pixels decode_png(std::string_view file, int64_t max_pixels);
Pixels decode_jpeg(std::string_view file, int64_t max_pixels);

/// Memory to begin with: what an image of this size needs, as far as a file of these bytes is likely to hold it.
std::size_t expected_bytes(const Pixels& image, std::string_view file);

/// Throws an ImageDamage unless an image of this size may be decoded.
void check_size(int64_t height, int64_t width, int64_t max_pixels);

}  // namespace lockstep::internal
