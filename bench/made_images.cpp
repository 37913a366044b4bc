#include "bench/made_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <utility>

// After <cstdio>, which it needs.
#include <jpeglib.h>

namespace lockstep::bench {

namespace fs = std::filesystem;

namespace {

/// A picture as a camera gives it: soft shapes and a little noise; about 25 KB as a JPEG file.
std::string picture(int64_t number, int64_t height, int64_t width) {
  std::string rows(static_cast<std::size_t>(height * width * 3), '\0');
  uint32_t noise = static_cast<uint32_t>(number) * 747796405u + 1;
  char* to = rows.data();
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        noise = noise * 1664525u + 1013904223u;
        const double soft =
            std::sin(0.021 * static_cast<double>(x * (1 + number % 5)) + static_cast<double>(c)) +
            std::cos(0.013 * static_cast<double>(y * (1 + number % 7)) - 0.04 * static_cast<double>(x)) +
            ((x / 23 + y / 17 + number) % 3 == 0 ? 0.6 : 0.0);
        *to++ = static_cast<char>(std::clamp(115 + 40 * soft + static_cast<double>(noise >> 28), 0.0, 255.0));
      }
    }
  }
  return rows;
}

void write_jpeg(const fs::path& path, std::string rows, int64_t height, int64_t width) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw std::runtime_error(fmt::format("'{}' cannot be written", path.string()));
  jpeg_stdio_dest(&info, file);
  info.image_height = static_cast<JDIMENSION>(height);
  info.image_width = static_cast<JDIMENSION>(width);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 90, TRUE);
  jpeg_start_compress(&info, TRUE);
  for (int64_t y = 0; y < height; ++y) {
    auto* row = reinterpret_cast<JSAMPROW>(rows.data() + y * width * 3);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::fclose(file);
}

}  // namespace

void make_images(const std::string& folder) {
  for (int64_t i = 0; i < kImages; ++i) {
    const fs::path path = fs::path(folder) / fmt::format("{}/{:04}.jpg", i % 10, i);
    fs::create_directories(path.parent_path());
    const int64_t height = i % 4 < 2 ? kShortSide : kLongSide;
    const int64_t width = i % 4 < 2 ? kLongSide : kShortSide;
    if (!fs::exists(path)) write_jpeg(path, picture(i, height, width), height, width);
  }
}

}  // namespace lockstep::bench
