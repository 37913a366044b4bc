#include "lockstep/core/device.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep::internal {
namespace {

TEST(ParseDevice, TakesNamesWithAndWithoutIndex) {
  EXPECT_EQ(parse_device("cpu").type, "cpu");
  EXPECT_EQ(parse_device("cpu").index, -1);
  EXPECT_EQ(parse_device("cpu:12").index, 12);
  EXPECT_EQ(parse_device("cuda:0").type, "cuda");
}

TEST(ParseDevice, QuotesWhatIsNoDevice) {
  for (const char* text :
       {"", "cpu:", "cpu:-1", "cpu:x", "cpu:1x", "gpu:0", "cpu:+1", "cpu:99999999999999999999", "CPU:0", "cpu 0"}) {
    const std::string quoted = "'" + std::string(text) + "'";
    lockstep::testing::expect_error<UsageError>([&] { parse_device(text); }, "LS-DEVICE", {quoted});
  }
}

}  // namespace
}  // namespace lockstep::internal
