// JPEG files, by libjpeg-turbo.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

// After <cstdio>, which it needs, and before its messages.
#include <jpeglib.h>

#include <jerror.h>

#include "lockstep/cluster/named_text.h"
#include "lockstep/data/formats/images/image_decoder.h"
#include "lockstep/data/formats/images/long_jump.h"

namespace lockstep::internal::inline data {

namespace {

constexpr int kMostScans = 200;  // a small file with very many scans would take for ever

/// One file that is being decoded.
struct Jpeg {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = "";

  Jpeg() {
    info.err = jpeg_std_error(&errors);
    errors.error_exit = &on_error;
    errors.emit_message = &on_message;
    errors.output_message = &no_output;
    progress.progress_monitor = &on_progress;
    info.client_data = this;
  }
  ~Jpeg() { jpeg_destroy_decompress(&info); }
  Jpeg(const Jpeg&) = delete;
  Jpeg& operator=(const Jpeg&) = delete;

  static Jpeg& of(j_common_ptr info) { return *static_cast<Jpeg*>(info->client_data); }
  static void no_output(j_common_ptr) {}
  static void on_error(j_common_ptr info) {
    Jpeg& self = of(info);
    self.errors.format_message(info, self.message);
    std::longjmp(self.jump, 1);
  }
  /// libjpeg paints what is missing grey and warns. Only warnings that leave all pixels right are passed over.
  static void on_message(j_common_ptr info, int level) {
    if (level >= 0) return;
    switch (of(info).errors.msg_code) {
      case JWRN_EXTRANEOUS_DATA:
      case JWRN_JFIF_MAJOR:
      case JWRN_ADOBE_XFORM:
      case JWRN_BOGUS_ICC: return;
      default: on_error(info);
    }
  }
  static void on_progress(j_common_ptr info) {
    Jpeg& self = of(info);
    if (self.info.input_scan_number <= kMostScans) return;
    std::snprintf(self.message, sizeof self.message, "it has more than %d scans", kMostScans);
    std::longjmp(self.jump, 1);
  }

  /// Runs calls of libjpeg; throws what it reports.
  template <class Fn>
  void call(const Fn& fn) {
    if (!finished(jump, fn))
      throw ImageDamage(fmt::format("it is no JPEG that can be decoded: {}", in_quotes(message, 150)));
  }
};

/// A row of inks as red, green and blue. Adobe's programs store inks inverted.
void from_inks(const unsigned char* inks, int64_t width, bool inverted, unsigned char* to) {
  for (int64_t i = 0; i < width; ++i, inks += 4) {
    const int black = inverted ? inks[3] : 255 - inks[3];
    for (int c = 0; c < 3; ++c)
      *to++ = static_cast<unsigned char>(((inverted ? inks[c] : 255 - inks[c]) * black + 127) / 255);
  }
}

/// Whether a part of the image can be computed with the whole image's bits: where rows come straight from the file.
bool gives_parts(jpeg_decompress_struct& info) {
  return !info.progressive_mode && !jpeg_has_multiple_scans(&info) && info.num_components != 4;
}

/// Leaves columns out that are not wanted, and gives those that come. Colours are made from their neighbours' too, so a
/// block more comes at each side.
Span cut_columns(jpeg_decompress_struct& info, const Span& wanted) {
  const int64_t block = int64_t{DCTSIZE} * info.max_h_samp_factor;
  const int64_t begin = std::max<int64_t>(wanted.begin / block - 1, 0) * block;
  const int64_t end = std::min<int64_t>(wanted.end + block, info.output_width);
  auto first = static_cast<JDIMENSION>(begin);
  auto count = static_cast<JDIMENSION>(end - begin);
  jpeg_crop_scanline(&info, &first, &count);
  return {first, int64_t{first} + count};
}

}  // namespace

Pixels decode_jpeg(std::string_view file, int64_t max_pixels, ChoosePart choose, std::string memory) {
  Jpeg self;
  jpeg_decompress_struct& info = self.info;
  self.call([&] {
    jpeg_create_decompress(&info);
    info.progress = &self.progress;
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&info, TRUE);
  });
  Pixels pixels = image_of(info.image_height, info.image_width, max_pixels);
  if (gives_parts(info)) choose(pixels);
  const bool has_inks = info.num_components == 4;
  self.call([&] {
    info.out_color_space = has_inks ? JCS_CMYK : JCS_RGB;
    info.dct_method = JDCT_ISLOW;  // exact: the same bits on every processor
    jpeg_start_decompress(&info);
    if (pixels.columns.size() < pixels.width) pixels.columns = cut_columns(info, pixels.columns);
    if (pixels.rows.begin > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(pixels.rows.begin));
  });
  const auto row = static_cast<std::size_t>(pixels.columns.size()) * 3;
  std::string inks(has_inks ? static_cast<std::size_t>(pixels.width) * 4 : 0, '\0');
  pixels.bytes = std::move(memory);
  pixels.bytes.reserve(expected_bytes(pixels, file));
  const auto read_row = [&](unsigned char* to) { self.call([&] { jpeg_read_scanlines(&info, &to, 1); }); };
  for (int64_t y = pixels.rows.begin; y < pixels.rows.end; ++y) {
    pixels.bytes.resize(pixels.bytes.size() + row);  // memory grows with the rows that are there
    auto* const to = reinterpret_cast<unsigned char*>(pixels.bytes.data() + pixels.bytes.size() - row);
    auto* const line = has_inks ? reinterpret_cast<unsigned char*>(inks.data()) : to;
    read_row(line);
    if (has_inks) from_inks(line, pixels.width, info.saw_Adobe_marker != 0, to);
  }
  // The rest is not computed, but read, so that damage is found there too: libjpeg does that up to a row that it gives.
  const int64_t rest = pixels.height - pixels.rows.end;
  if (rest > 1) self.call([&] { jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(rest - 1)); });
  if (rest > 0) {
    std::string last(row, '\0');
    read_row(reinterpret_cast<unsigned char*>(last.data()));
  }
  self.call([&] { jpeg_finish_decompress(&info); });
  return pixels;
}

}  // namespace lockstep::internal::data
