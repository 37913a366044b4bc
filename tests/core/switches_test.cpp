// A switch of the environment is one of its words, or unset, or refused with all that it can be set to.
#include "lockstep/core/switches.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::caught_from;
using lockstep::testing::expect_error;

constexpr const char* kVariable = "LOCKSTEP_SWITCHES_TEST";

/// The switch with this text, or unset by a null.
int set_to(const char* text) {
  text ? setenv(kVariable, text, 1) : unsetenv(kVariable);
  return choice_of(kVariable, {{"one", 1}, {"two", 2}, {"three", 3}}, 0, " for none");
}

TEST(Switches, AreReadAtEachCall) {
  EXPECT_EQ(set_to("one"), 1);
  EXPECT_EQ(set_to("three"), 3);
  EXPECT_EQ(set_to(nullptr), 0);
}

TEST(Switches, CountAsUnsetWhereTheyAreEmpty) { EXPECT_EQ(set_to(""), 0); }

TEST(Switches, AreRefusedWithAllThatTheyCanBe) {
  for (const char* wrong : {"One", "one ", "on", "four", "0"}) {
    expect_error<UsageError>([&] { set_to(wrong); }, "LS-ENVIRONMENT", {kVariable, std::string("'") + wrong + "'"});
  }
  const auto error = caught_from<UsageError>([&] { set_to("four"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->remedy(), "set it to one, two or three, or leave it unset for none");
  unsetenv(kVariable);
}

}  // namespace
}  // namespace lockstep::internal
