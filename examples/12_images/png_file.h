// Writes PNG files, so that the example needs no data. Nothing of it is needed for reading.
#pragma once

#include <cstdint>
#include <string>

/// A PNG file of red, green and blue bytes, row by row, which are stored and not compressed. Up to 21,000 pixels.
inline std::string png_file(uint32_t height, uint32_t width, const std::string& pixels) {
  const auto word = [](uint32_t x) {
    return std::string{static_cast<char>(x >> 24), static_cast<char>(x >> 16), static_cast<char>(x >> 8),
                       static_cast<char>(x)};
  };
  const auto chunk = [&](const std::string& type_and_data) {
    uint32_t crc = ~0u;
    for (const char c : type_and_data) {
      crc ^= static_cast<unsigned char>(c);
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return word(static_cast<uint32_t>(type_and_data.size()) - 4) + type_and_data + word(~crc);
  };
  std::string rows;  // a byte before each row says that it is as it is
  for (uint32_t y = 0; y < height; ++y)
    rows += '\0' + pixels.substr(std::size_t{3} * width * y, std::size_t{3} * width);
  uint32_t a = 1;
  uint32_t b = 0;
  for (const char c : rows) {
    a = (a + static_cast<unsigned char>(c)) % 65521;
    b = (b + a) % 65521;
  }
  const auto size = static_cast<uint16_t>(rows.size());
  const auto low_first = [](uint16_t x) { return std::string{static_cast<char>(x), static_cast<char>(x >> 8)}; };
  const std::string zlib = std::string("\x78\x01\x01", 3) + low_first(size) + low_first(static_cast<uint16_t>(~size)) +
                           rows + word(b << 16 | a);
  return std::string("\x89PNG\r\n\x1a\n", 8) +
         chunk("IHDR" + word(width) + word(height) + std::string("\x08\x02\0\0\0", 5)) + chunk("IDAT" + zlib) +
         chunk("IEND");
}
