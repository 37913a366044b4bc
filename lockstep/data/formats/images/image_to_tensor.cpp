#include "lockstep/data/formats/images/image_to_tensor.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/images/byte_planes.h"
#include "lockstep/data/formats/images/image_decoder.h"
#include "lockstep/data/formats/images/image_resizer.h"

namespace lockstep::internal::inline data {

namespace {

constexpr int64_t kMostPixels = int64_t{1} << 31;

// Each thread decodes into memory that it keeps from image to image, if it is not more than this. The system would have
// to clear the pages of new memory.
constexpr std::size_t kKeptBytes = std::size_t{4} << 20;
thread_local std::string kept_memory;

}  // namespace

ImageToTensor::ImageToTensor(const lockstep::data::ImageOptions& options, const char* call)
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
  const auto window_of = [&](const Pixels& image) {
    if (options_.fit == lockstep::data::ImageFit::kCrop)
      return covering_window(image.height, image.width, height, width);
    return Window{{image.height, height, 0, height}, {image.width, width, 0, width}};
  };
  const auto choose = [&](Pixels& part) {
    const Window window = window_of(part);
    part.rows = reach_of(window.rows);
    part.columns = reach_of(window.columns);
  };
  Pixels image = decode_pixels(file, options_.max_pixels, choose, std::move(kept_memory));
  const int64_t plane = height * width;
  int64_t done = 0;  // pixels
  for_each_row(image, window_of(image), [&](const unsigned char* row) {
    if (options_.normalize) {
      table_.apply_to_pixels(row, width, static_cast<float*>(to) + done, plane);
    } else {
      copy_to_planes(row, width, static_cast<unsigned char*>(to) + done, plane);
    }
    done += width;
  });
  if (image.bytes.capacity() <= kKeptBytes) kept_memory = std::move(image.bytes);
}

}  // namespace lockstep::internal::data

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
