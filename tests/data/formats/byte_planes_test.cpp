// Pixels taken apart into planes.
#include "lockstep/data/formats/images/byte_planes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace lockstep {
namespace {

TEST(BytePlanes, HaveTheSameBytesWhateverInstructionsMakeThem) {
  constexpr int64_t kMost = 80;  // five blocks of the instructions
  constexpr int64_t kPlane = kMost + 3;
  std::vector<unsigned char> pixels(1 + 3 * kMost);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<unsigned char>(i * 37 + i / 7);
  for (int64_t count = 0; count <= kMost; ++count) {
    for (const int64_t begin : {0, 1}) {  // memory that begins anywhere
      std::vector<unsigned char> planes(1 + 3 * kPlane, 99);
      std::vector<unsigned char> expected = planes;
      internal::copy_to_planes(pixels.data() + begin, count, planes.data() + begin, kPlane);
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t c = 0; c < 3; ++c) {
          expected[static_cast<std::size_t>(begin + c * kPlane + i)] =
              pixels[static_cast<std::size_t>(begin + 3 * i + c)];
        }
      }
      EXPECT_EQ(planes, expected) << count << " pixels from " << begin;
      internal::copy_to_planes_plain(pixels.data() + begin, count, planes.data() + begin, kPlane);
      EXPECT_EQ(planes, expected) << count << " pixels from " << begin << ", without the instructions";
    }
  }
}

}  // namespace
}  // namespace lockstep
