#include "lockstep/data/formats/images/image_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/cluster/named_text.h"

namespace lockstep::internal::inline data {

Pixels image_of(int64_t height, int64_t width, int64_t max_pixels) {
  if (height < 1 || width < 1) throw ImageDamage(fmt::format("it has {} x {} pixels", height, width));
  if (height <= max_pixels / width) return {height, width, {0, height}, {0, width}};
  throw ImageDamage(
      fmt::format("it says that it has {} x {} pixels, above the limit of {}", height, width, max_pixels));
}

std::size_t expected_bytes(const Pixels& image, std::string_view file) {
  constexpr std::size_t kUsual = 64;  // bytes of pixels for each byte of a file; few files have more
  return std::min(static_cast<std::size_t>(3 * image.rows.size() * image.columns.size()), kUsual * file.size());
}

Pixels decode_pixels(std::string_view file, int64_t max_pixels, ChoosePart choose, std::string memory) {
  memory.clear();
  if (file.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(file, max_pixels, std::move(memory));
  if (file.starts_with("\xff\xd8")) return decode_jpeg(file, max_pixels, choose, std::move(memory));
  throw ImageDamage(fmt::format("it is neither PNG nor JPEG: it begins with {}", in_quotes(file, 8)));
}

}  // namespace lockstep::internal::data
