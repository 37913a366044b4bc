// Any bytes as a PNG or JPEG file; those that begin as a PNG does also with right checksums.
#include <zlib.h>

#include "lockstep/data/formats/image_decoder.h"
#include "lockstep/data/formats/image_resizer.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr int64_t kMostPixels = 20000;

/// Gives each chunk of a PNG file its checksum.
void repair(std::string& file) {
  for (std::size_t at = 8; at + 12 <= file.size();) {
    const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(file[at + i])); };
    const std::size_t length = byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3);
    if (length > file.size() - at - 12) return;
    const auto* const chunk = reinterpret_cast<const Bytef*>(file.data()) + at + 4;
    const uLong checksum = crc32(0, chunk, static_cast<uInt>(length + 4));
    for (std::size_t i = 0; i < 4; ++i) file[at + 8 + length + i] = static_cast<char>(checksum >> (24 - 8 * i) & 0xff);
    at += 12 + length;
  }
}

void decode(const std::string& file) {
  using namespace lockstep;
  internal::Pixels pixels;
  try {
    pixels = internal::decode_pixels(file, kMostPixels);
  } catch (const internal::ImageDamage& damage) {
    for (const char* c = damage.what(); *c != '\0'; ++c)
      fuzz::check(*c >= 0x20 && *c <= 0x7e, "a message is printable");
    return;
  }
  fuzz::check(pixels.height >= 1 && pixels.width >= 1 && pixels.height * pixels.width <= kMostPixels,
              "the limit is kept");
  fuzz::check(pixels.bytes.size() == static_cast<std::size_t>(3 * pixels.height * pixels.width),
              "all pixels are there");
  const internal::Window window = internal::covering_window(pixels.height, pixels.width, 5, 7);
  const internal::Pixels scaled = internal::scaled_window(pixels, window.rows, window.columns);
  fuzz::check(scaled.height == 5 && scaled.width == 7 && scaled.bytes.size() == 105, "all pixels are there");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  std::string file(reinterpret_cast<const char*>(data), size);
  decode(file);
  if (!file.starts_with("\x89PNG")) return 0;
  repair(file);
  decode(file);
  return 0;
}
