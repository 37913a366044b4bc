#include "lockstep/data/sources/images.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "lockstep/core/error.h"
#include "lockstep/data/rows.h"

namespace lockstep::data {

namespace {

using internal::text_of;

/// Draws from a generator of the host, in the order of calls.
class Draws {
 public:
  Draws(at::Generator generator, const char* call) : generator_(std::move(generator)) {
    if (generator_.defined() && generator_.device().is_cpu()) return;
    throw UsageError(
        "LS-OPTION",
        fmt::format("{} was given {} generator", call, generator_.defined() ? "a device's" : "an undefined"),
        "give the generator that map() hands on, or one of the host");
  }
  /// From 0 to below `count`, which is below 2^32: the upper half of a product, whose bias is below 2^-32.
  int64_t below(int64_t count) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    const uint64_t bits = generator_.get<at::CPUGeneratorImpl>()->random64() >> 32;
    return static_cast<int64_t>(bits * static_cast<uint64_t>(count) >> 32);
  }
  /// From 0 to below 1.
  double fraction() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    return static_cast<double>(generator_.get<at::CPUGeneratorImpl>()->random64() >> 11) * 0x1p-53;
  }

 private:
  at::Generator generator_;
};

/// The last two sizes of an image.
struct Size {
  int64_t height;
  int64_t width;
};

Size size_of(const at::Tensor& image, const char* call) {
  constexpr int64_t kMost = int64_t{1} << 31;
  internal::check_rows(image, call, "the image");
  if (image.dim() >= 2 && image.size(-1) >= 1 && image.size(-2) >= 1 && image.size(-1) < kMost &&
      image.size(-2) < kMost)
    return {image.size(-2), image.size(-1)};
  throw UsageError("LS-BATCH", fmt::format("{} was given {} as the image", call, text_of(image)),
                   "give an image [..., height, width] with pixels");
}

/// Whether an element can be this number; one of a floating-point dtype is rounded.
bool can_hold(at::ScalarType type, double number) {
  if (!at::isIntegralType(type, /*includeBool=*/true)) {
    try {
      at::empty({2}, type).fill_(number);  // one element is rounded without a check
      return true;
    } catch (const std::exception&) {  // LibTorch knows the range of each dtype
      return false;
    }
  }
  const bool is_signed = type != at::kBool && c10::isSignedType(type);
  const int bits = type == at::kBool ? 1 : 8 * static_cast<int>(c10::elementSize(type));
  const double above = std::ldexp(1.0, is_signed ? bits - 1 : bits);
  return number == std::floor(number) && number < above && number >= (is_signed ? -above : 0);
}

}  // namespace

at::Tensor random_crop(const at::Tensor& image, const CropOptions& options, at::Generator generator) {
  constexpr int64_t kMostPadding = 1 << 20;
  const auto [image_height, image_width] = size_of(image, "random_crop");
  const int64_t height = options.height == 0 ? image_height : options.height;
  const int64_t width = options.width == 0 ? image_width : options.width;
  const bool padding_fits = options.padding >= 0 && options.padding <= kMostPadding;
  if (!padding_fits || height < 1 || width < 1 || height > image_height + 2 * options.padding ||
      width > image_width + 2 * options.padding) {
    throw UsageError("LS-OPTION",
                     fmt::format("random_crop was asked for {} x {} of {}, with a padding of {}", height, width,
                                 text_of(image), options.padding),
                     fmt::format("give sizes that fit, and a padding from 0 to {}", kMostPadding));
  }
  Draws draws(std::move(generator), "random_crop");
  // The window within the padded image; only what lies in the image is copied.
  const int64_t top = draws.below(image_height + 2 * options.padding - height + 1) - options.padding;
  const int64_t left = draws.below(image_width + 2 * options.padding - width + 1) - options.padding;
  const at::NoGradGuard no_grad;
  std::vector<int64_t> sizes = image.sizes().vec();
  sizes[sizes.size() - 2] = height;
  sizes[sizes.size() - 1] = width;
  at::Tensor result = at::zeros(sizes, image.options());
  const int64_t begin_y = std::max<int64_t>(top, 0);
  const int64_t begin_x = std::max<int64_t>(left, 0);
  const int64_t rows = std::min(top + height, image_height) - begin_y;
  const int64_t columns = std::min(left + width, image_width) - begin_x;
  if (rows > 0 && columns > 0) {
    result.narrow(-2, begin_y - top, rows)
        .narrow(-1, begin_x - left, columns)
        .copy_(image.narrow(-2, begin_y, rows).narrow(-1, begin_x, columns));
  }
  return result;
}

at::Tensor random_flip(const at::Tensor& image, at::Generator generator, double probability) {
  size_of(image, "random_flip");
  if (!(probability >= 0 && probability <= 1)) {
    throw UsageError("LS-OPTION", fmt::format("random_flip was given a probability of {}", probability),
                     "give one from 0 to 1");
  }
  Draws draws(std::move(generator), "random_flip");
  const at::NoGradGuard no_grad;
  return draws.fraction() < probability ? image.flip({-1}) : image.clone(at::MemoryFormat::Contiguous);
}

at::Tensor cutout(const at::Tensor& image, const CutoutOptions& options, at::Generator generator) {
  const auto [image_height, image_width] = size_of(image, "cutout");
  if (options.height < 0 || options.width < 0) {
    throw UsageError("LS-OPTION",
                     fmt::format("cutout was given .height {} and .width {}", options.height, options.width),
                     "give sizes from 0");
  }
  if (!can_hold(image.scalar_type(), options.fill)) {
    throw UsageError("LS-OPTION",
                     fmt::format("cutout was given .fill {}, and {} cannot hold it", options.fill, text_of(image)),
                     "give a number of the image's dtype: a whole one, for bytes from 0 to 255");
  }
  Draws draws(std::move(generator), "cutout");
  const auto span = [&draws](int64_t size, int64_t count) {
    const int64_t middle = draws.below(size);
    const int64_t before = std::min(middle, count / 2);
    return std::pair(middle - before, std::min(before + count - count / 2, size - middle + before));
  };
  const auto [top, rows] = span(image_height, options.height);
  const auto [left, columns] = span(image_width, options.width);
  const at::NoGradGuard no_grad;
  at::Tensor result = image.clone(at::MemoryFormat::Contiguous);
  result.narrow(-2, top, rows).narrow(-1, left, columns).fill_(options.fill);
  return result;
}

at::Tensor normalize(const at::Tensor& image, const std::vector<float>& mean, const std::vector<float>& stddev) {
  size_of(image, "normalize");
  const auto channels = static_cast<int64_t>(mean.size());
  const bool positive = std::all_of(stddev.begin(), stddev.end(), [](float x) { return x > 0; });
  if (image.dim() < 3 || image.size(-3) != channels || stddev.size() != mean.size() || !positive) {
    throw UsageError("LS-OPTION",
                     fmt::format("normalize was given {}, {} means and {} standard deviations", text_of(image),
                                 mean.size(), stddev.size()),
                     "give [..., channels, height, width], and a mean and a positive stddev for each channel");
  }
  const at::NoGradGuard no_grad;
  at::Tensor result = image.to(at::kFloat);
  if (image.scalar_type() == at::kByte) result = result / 255;
  const auto by_channel = [channels](const std::vector<float>& values) {
    at::Tensor tensor = at::empty({channels, 1, 1}, at::kFloat);
    std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
    return tensor;
  };
  return (result - by_channel(mean)) / by_channel(stddev);
}

}  // namespace lockstep::data
