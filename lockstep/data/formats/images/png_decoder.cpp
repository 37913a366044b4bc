// PNG files, by libpng.
#include <fmt/format.h>
#include <png.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "lockstep/cluster/named_text.h"
#include "lockstep/data/formats/images/image_decoder.h"
#include "lockstep/data/formats/images/long_jump.h"

namespace lockstep::internal::inline data {

namespace {

/// One file that is being decoded.
struct Png {
  std::string_view left;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf jump;
  char message[160] = "";

  explicit Png(std::string_view file) : left(file) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &on_error, &on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
  }
  ~Png() { png_destroy_read_struct(&png, &info, nullptr); }
  Png(const Png&) = delete;
  Png& operator=(const Png&) = delete;

  static void on_error(png_structp png, png_const_charp text) {
    Png& self = *static_cast<Png*>(png_get_error_ptr(png));
    std::snprintf(self.message, sizeof self.message, "%s", text);
    std::longjmp(self.jump, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep to, png_size_t count) {
    Png& self = *static_cast<Png*>(png_get_io_ptr(png));
    if (count > self.left.size()) png_error(png, "the file is cut off");
    std::memcpy(to, self.left.data(), count);
    self.left.remove_prefix(count);
  }

  /// Runs calls of libpng; throws what it reports.
  template <class Fn>
  void call(const Fn& fn) {
    if (!finished(jump, fn))
      throw ImageDamage(fmt::format("it is no PNG that can be decoded: {}", in_quotes(message, 150)));
  }
};

}  // namespace

Pixels decode_png(std::string_view file, int64_t max_pixels, std::string memory) {
  Png self(file);
  if (self.info == nullptr) throw ImageDamage("libpng refused to begin");
  self.call([&self] {
    png_set_read_fn(self.png, &self, &Png::on_read);
    // What is no pixels is passed over: libpng would take memory for all that such a chunk says it has.
    png_set_keep_unknown_chunks(self.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_user_limits(self.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_read_info(self.png, self.info);
  });
  Pixels pixels =
      image_of(png_get_image_height(self.png, self.info), png_get_image_width(self.png, self.info), max_pixels);
  int passes = 1;
  std::size_t row_bytes = 0;
  self.call([&self, &passes, &row_bytes] {
    png_set_expand(self.png);  // palettes, and fewer than 8 bits
    png_set_strip_16(self.png);
    png_set_strip_alpha(self.png);
    png_set_gray_to_rgb(self.png);
    passes = png_set_interlace_handling(self.png);
    png_read_update_info(self.png, self.info);
    row_bytes = png_get_rowbytes(self.png, self.info);
  });
  const auto row = static_cast<std::size_t>(pixels.width) * 3;
  if (row_bytes != row)
    throw ImageDamage("it is no PNG that can be decoded: its pixels do not become red, green and blue");
  // Memory grows with the rows that are there; an interlaced image needs it all at once.
  pixels.bytes = std::move(memory);
  pixels.bytes.reserve(expected_bytes(pixels, file));
  const std::size_t whole = static_cast<std::size_t>(pixels.height) * row;
  for (int pass = 0; pass < passes; ++pass) {
    for (std::size_t at = 0; at < whole; at += row) {
      if (pixels.bytes.size() < whole) pixels.bytes.resize(passes > 1 ? whole : at + row);
      auto* const to = reinterpret_cast<png_bytep>(pixels.bytes.data() + at);
      self.call([&self, to] { png_read_row(self.png, to, nullptr); });
    }
  }
  self.call([&self] { png_read_end(self.png, nullptr); });
  return pixels;
}

}  // namespace lockstep::internal::data
