#include "lockstep/data/formats/image_to_tensor.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/image_decoder.h"
#include "lockstep/data/formats/image_resizer.h"

namespace lockstep::internal {

namespace {

constexpr int64_t kMostPixels = int64_t{1} << 31;

}  // namespace

ImageToTensor::ImageToTensor(const data::ImageOptions& options, const char* call)
    : options_(options), table_(options.mean, options.stddev) {
  const bool sizes = options.height >= 1 && options.width >= 1 && options.max_pixels >= 1 &&
                     options.max_pixels <= kMostPixels && options.height <= options.max_pixels / options.width;
  const bool positive = std::all_of(options.stddev.begin(), options.stddev.end(), [](float x) { return x > 0; });
  if (sizes && positive) return;
  throw UsageError(
      "LS-OPTION",
      fmt::format("{} was given .height {}, .width {}, .max_pixels {} and .stddev {{{}, {}, {}}}", call, options.height,
                  options.width, options.max_pixels, options.stddev[0], options.stddev[1], options.stddev[2]),
      fmt::format("give positive numbers, at most .max_pixels pixels, and at most {} as .max_pixels", kMostPixels));
}

void ImageToTensor::write(std::string_view file, void* to) const {
  const int64_t height = options_.height;
  const int64_t width = options_.width;
  const Pixels image = decode_pixels(file, options_.max_pixels);
  Window window{{image.height, height, 0, height}, {image.width, width, 0, width}};
  if (options_.fit == data::ImageFit::kCrop) window = covering_window(image.height, image.width, height, width);
  const Pixels scaled = scaled_window(image, window.rows, window.columns);
  const int64_t plane = height * width;
  const auto* const from = reinterpret_cast<const unsigned char*>(scaled.bytes.data());
  if (options_.normalize) return table_.apply_to_pixels(from, plane, static_cast<float*>(to));
  auto* planes = static_cast<unsigned char*>(to);
  for (int64_t channel = 0; channel < 3; ++channel) {
    for (int64_t i = 0; i < plane; ++i) *planes++ = from[3 * i + channel];
  }
}

}  // namespace lockstep::internal

namespace lockstep::data {

at::Tensor decode_image(std::string_view file, const ImageOptions& options) {
  const internal::ImageToTensor decode(options, "decode_image");
  at::Tensor image = at::empty({3, options.height, options.width}, options.normalize ? at::kFloat : at::kByte);
  try {
    decode.write(file, image.data_ptr());
  } catch (const internal::ImageDamage& damage) {
    throw DataError("LS-DATA-RECORD",
                    fmt::format("{} bytes cannot be used as an image: {}", file.size(), damage.what()),
                    "check what the record holds, or get its file again");
  }
  return image;
}

}  // namespace lockstep::data
