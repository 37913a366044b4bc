#include "lockstep/train/tensor_board/png_bytes.h"

#include <fmt/format.h>
#include <zlib.h>

#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline train {

namespace {

std::string big_endian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>((value >> shift) & 0xff);
  return bytes;
}

/// A chunk: its length, its kind and bytes, and a checksum of these two.
std::string chunk(std::string_view kind, std::string_view bytes) {
  const std::string both = std::string(kind).append(bytes);
  const uLong sum = ::crc32(0, reinterpret_cast<const Bytef*>(both.data()), static_cast<uInt>(both.size()));
  return big_endian(static_cast<uint32_t>(bytes.size())) + both + big_endian(static_cast<uint32_t>(sum));
}

}  // namespace

std::string png_bytes(std::span<const uint8_t> pixels, int64_t width, int64_t height, int64_t channels) {
  const bool has_known_colours = channels == 1 || channels == 3 || channels == 4;
  constexpr int64_t kLongest = 1 << 15;
  if (!has_known_colours || width < 1 || height < 1 || width > kLongest || height > kLongest ||
      pixels.size() != static_cast<std::size_t>(width * height * channels)) {
    throw UsageError("LS-SHAPE",
                     fmt::format("an image of {} x {} pixels with {} channels and {} values cannot be a PNG", width,
                                 height, channels, pixels.size()),
                     "give 1, 3 or 4 channels, and from 1 to 32768 pixels each way");
  }
  std::string rows;  // each behind a byte that says how the row was filtered: not at all
  const auto row_bytes = static_cast<std::size_t>(width * channels);
  for (std::size_t first = 0; first < pixels.size(); first += row_bytes) {
    rows += '\0';
    rows.append(reinterpret_cast<const char*>(pixels.data()) + first, row_bytes);
  }
  uLongf size = compressBound(rows.size());
  std::string packed(size, '\0');
  const int status = compress(reinterpret_cast<Bytef*>(packed.data()), &size,
                              reinterpret_cast<const Bytef*>(rows.data()), rows.size());
  if (status != Z_OK)
    throw InternalError("LS-INTERNAL", fmt::format("zlib could not compress: {}", status), "report it");
  packed.resize(size);
  const char colours = channels == 1 ? 0 : channels == 3 ? 2 : 6;
  std::string header = big_endian(static_cast<uint32_t>(width)) + big_endian(static_cast<uint32_t>(height));
  header += {8, colours, 0, 0, 0};
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", packed) + chunk("IEND", "");
}

}  // namespace lockstep::internal::train
