// Any bytes as a PNG or JPEG file; those that begin as a PNG does also with right checksums.
#include <zlib.h>

#include <cstring>
#include <optional>

#include "lockstep/data/formats/images/image_decoder.h"
#include "lockstep/data/formats/images/image_resizer.h"
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

using namespace lockstep;

/// The image, or the part of it that is chosen; nothing where it is damaged.
std::optional<internal::Pixels> decoded(const std::string& file, internal::ChoosePart choose) {
  try {
    return internal::decode_pixels(file, kMostPixels, choose);
  } catch (const internal::ImageDamage& damage) {
    for (const char* c = damage.what(); *c != '\0'; ++c)
      fuzz::check(*c >= 0x20 && *c <= 0x7e, "a message is printable");
    return std::nullopt;
  }
}

void decode(const std::string& file) {
  const auto whole = decoded(file, [](internal::Pixels&) {});
  const auto part = decoded(file, [](internal::Pixels& chosen) {
    chosen.rows = {chosen.height / 3, chosen.height - chosen.height / 4};
    chosen.columns = {chosen.width / 3, chosen.width - chosen.width / 4};
  });
  fuzz::check(whole.has_value() == part.has_value(), "damage is found beside the chosen part too");
  if (!whole) return;
  fuzz::check(whole->height >= 1 && whole->width >= 1 && whole->height * whole->width <= kMostPixels,
              "the limit is kept");
  fuzz::check(whole->bytes.size() == static_cast<std::size_t>(3 * whole->height * whole->width),
              "all pixels are there");
  const auto count = static_cast<std::size_t>(3 * (part->width - part->width / 4 - part->width / 3));
  for (int64_t y = part->height / 3; y < part->height - part->height / 4; ++y) {
    fuzz::check(std::memcmp(part->at(y, part->width / 3), whole->at(y, part->width / 3), count) == 0,
                "a part has the bits of the whole");
  }
  int64_t rows = 0;
  internal::for_each_row(*whole, internal::covering_window(whole->height, whole->width, 5, 7),
                         [&](const unsigned char*) { ++rows; });
  fuzz::check(rows == 5, "all rows are there");
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
