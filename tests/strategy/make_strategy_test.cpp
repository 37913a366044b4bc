// Strategies by name.
#include "lockstep/strategy/make_strategy.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;

TEST(MakeStrategy, GivesOneDeviceTheDeviceOfItsOwnOptions) {
  EXPECT_TRUE(testing::has_value(make_strategy("one-device", {.device = "cpu:1"})->describe(), "cpu:1"));
  expect_error<UsageError>([] { make_strategy("one-device", {.devices = lanes(1), .device = "cpu:1"}); }, "LS-OPTION",
                           {"2 devices"});
  expect_error<UsageError>([] { make_strategy("mirrored", {.device = "cpu:1"}); }, "LS-OPTION", {".device"});
}

}  // namespace
}  // namespace lockstep
