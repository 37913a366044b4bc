// PNG files that are written, read by libpng.
#include "lockstep/train/tensor_board/png_bytes.h"

#include <gtest/gtest.h>

#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/images/image_decoder.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using testing::expect_error;

/// Pixels that all differ.
std::vector<uint8_t> pixels(std::size_t count) {
  std::vector<uint8_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<uint8_t>(7 * i + 1);
  return values;
}

TEST(PngBytes, AreThePixelsInEachColourForm) {
  for (const int64_t channels : {1, 3, 4}) {
    const std::vector<uint8_t> written = pixels(static_cast<std::size_t>(3 * 2 * channels));
    const Pixels read = decode_png(png_bytes(written, 3, 2, channels), 100, {});
    ASSERT_EQ(read.width, 3);
    ASSERT_EQ(read.height, 2);
    for (int64_t i = 0; i < 6; ++i) {
      for (int64_t colour = 0; colour < 3; ++colour) {
        const auto at = static_cast<std::size_t>(i * channels + (channels == 1 ? 0 : colour));
        EXPECT_EQ(read.at(i / 3, i % 3)[colour], written[at]) << channels;
      }
    }
  }
}

TEST(PngBytes, RefuseSizesThatDoNotGoWithThePixels) {
  expect_error<UsageError>([] { png_bytes(pixels(12), 3, 2, 2); }, "LS-SHAPE");
  expect_error<UsageError>([] { png_bytes(pixels(5), 3, 2, 1); }, "LS-SHAPE", {"3", "2"});
  expect_error<UsageError>([] { png_bytes({}, 0, 2, 1); }, "LS-SHAPE");
}

}  // namespace
}  // namespace lockstep::internal
