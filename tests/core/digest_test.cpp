// A digest differs where what it is of differs, and is the same in every process.
#include "lockstep/core/digest.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace lockstep::internal {
namespace {

TEST(Digest, DependsOnWhatItIsOfAlone) {
  // Workers of other builds and machines have these values.
  EXPECT_EQ(Digest().value(), 0u);
  EXPECT_EQ(Digest().with(0).value(), 0xe220a8397b1dcdafu);
  EXPECT_EQ(Digest().with(1).with(0.5).with("weights of a layer").value(), 0x23359561268ed55bu);
  EXPECT_EQ(Digest(5).with(-1).value(), Digest(5).with(~uint64_t{0}).value());
}

TEST(Digest, DiffersWithOrderPlacesAndSigns) {
  EXPECT_NE(Digest().with(1).with(2).value(), Digest().with(2).with(1).value());
  EXPECT_NE(Digest().with(0).value(), Digest().with(0).with(0).value());
  EXPECT_NE(Digest().with(0.0).value(), Digest().with(-0.0).value());
  EXPECT_NE(Digest().with("ab").with("c").value(), Digest().with("a").with("bc").value());
  EXPECT_NE(Digest().with(std::string("a\0", 2)).value(), Digest().with("a").value());
  EXPECT_NE(Digest().with("12345678").value(), Digest().with("123456789").value());
  EXPECT_EQ(Digest().with_all(std::vector<int64_t>{1, 2}).value(), Digest().with(1).with(2).value());
}

TEST(Digest, DiffersForAllSmallShapes) {
  std::set<uint64_t> seen;
  std::size_t count = 0;
  for (int64_t a = 0; a < 40; ++a) {
    for (int64_t b = 0; b < 40; ++b) {
      for (int64_t c = 0; c < 40; ++c, ++count) seen.insert(Digest().with(a).with(b).with(c).value());
    }
  }
  EXPECT_EQ(seen.size(), count);
}

}  // namespace
}  // namespace lockstep::internal
