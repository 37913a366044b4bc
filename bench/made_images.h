// The JPEG files that programs which measure reading read.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::bench {

constexpr int64_t kImages = 512;
constexpr int64_t kShortSide = 224;  // of an image, in pixels
constexpr int64_t kLongSide = 298;

/// Makes ten folders of images in `folder`, half of them upright. Files that are there already stay as they are.
void make_images(const std::string& folder);

}  // namespace lockstep::bench
