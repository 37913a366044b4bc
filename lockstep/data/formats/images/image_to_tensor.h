// From an image file's bytes to the elements of a tensor.
#pragma once

#include <string_view>

#include "lockstep/data/formats/images/byte_images.h"
#include "lockstep/data/sources/images.h"

namespace lockstep::internal::inline data {

/// Decodes, scales and, where the options say so, normalizes. Any number of threads may use one.
class ImageToTensor {
 public:
  /// Throws a UsageError that names `call` for options that contradict each other.
  ImageToTensor(const lockstep::data::ImageOptions& options, const char* call);
  /// Writes the 3 x height x width elements of an image, float32 or uint8. Throws an ImageDamage.
  void write(std::string_view file, void* to) const;

 private:
  const lockstep::data::ImageOptions options_;
  const PixelTable table_;
};

}  // namespace lockstep::internal::data
