// Images as tensors: decoding, and the random work that is usual with them.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/TensorBody.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

enum class ImageFit : uint8_t {
  kCrop,     // scaled until it covers height and width, then cut out of the middle
  kStretch,  // scaled to height and width, each by itself
};

struct ImageOptions {
  int64_t height = 224;
  int64_t width = 224;
  ImageFit fit = ImageFit::kCrop;
  bool normalize = true;  // float32, (x / 255 - mean) / stddev; otherwise the bytes, uint8
  std::array<float, 3> mean = {0.485f, 0.456f, 0.406f};
  std::array<float, 3> stddev = {0.229f, 0.224f, 0.225f};
  int64_t max_pixels = int64_t{1} << 26;  // an image that says it has more is refused before memory is taken
  /// Of image_folder(): what the folders must be called, class 0 first; none: the folders that are there, sorted by
  /// their bytes. Give the classes of one split for the others, so that a number means the same class in all of them.
  std::vector<std::string> classes = {};
};

/// A PNG or JPEG file's bytes as [3, height, width], as image_folder() gives it: float32, or uint8 without
/// `.normalize`. `.classes` is not looked at. Throws a DataError where they cannot be decoded, and a UsageError for
/// options that contradict each other.
at::Tensor decode_image(std::string_view file, const ImageOptions& options = {});

// Random work. An image is [..., height, width]; what stands before, such as channels, is treated alike. Each call
// draws from its generator, which must be a CPU generator, and from nothing else: the same generator state gives the
// same image on every machine, and every call takes the same number of draws. The result is a new tensor of the image's
// dtype. A UsageError names an image of too few dimensions, a size that does not fit, and an undefined generator.

struct CropOptions {
  int64_t height = 0;   // 0: the image's own
  int64_t width = 0;    // 0: the image's own
  int64_t padding = 0;  // zeros that are put around the image before
};
/// A window of this size at a random place.
at::Tensor random_crop(const at::Tensor& image, const CropOptions& options, at::Generator generator);
/// Mirrored from left to right, with this probability.
at::Tensor random_flip(const at::Tensor& image, at::Generator generator, double probability = 0.5);

struct CutoutOptions {
  int64_t height = 8;
  int64_t width = 8;
  double fill = 0;
};
/// A rectangle, whose middle is a random pixel, is filled; where it reaches beyond the image it is cut. Throws a
/// UsageError for a `fill` that the image's dtype cannot hold.
at::Tensor cutout(const at::Tensor& image, const CutoutOptions& options, at::Generator generator);

/// (x - mean) / stddev for each channel of [..., channels, height, width], as float32; bytes are divided by 255
/// before. Draws nothing.
at::Tensor normalize(const at::Tensor& image, const std::vector<float>& mean, const std::vector<float>& stddev);

}  // namespace lockstep::data
