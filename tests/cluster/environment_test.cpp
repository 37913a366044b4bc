#include "lockstep/cluster/sources/environment.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "lockstep/cluster/named_text.h"
#include "lockstep/core/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using Variables = Environment::Variables;
using testing::expect_error;

TEST(EnvironmentSnapshot, AnEmptyValueCountsAsNotSet) {
  const Environment environment({{"A", "1"}, {"B", ""}});
  EXPECT_EQ(environment.get("A"), "1");
  EXPECT_FALSE(environment.has("B"));
  EXPECT_FALSE(environment.has("C"));
  EXPECT_FALSE(environment.integer("B", 0, 9));
}

TEST(EnvironmentSnapshot, OfTheProcessHasItsVariables) {
  const char* path = getenv("PATH");
  ASSERT_NE(path, nullptr);
  EXPECT_EQ(Environment::of_process().get("PATH"), path);
}

TEST(EnvironmentSnapshot, IntegersAreDecimalAndWithinTheirBounds) {
  const auto read = [](const std::string& text) { return Environment(Variables{{"N", text}}).integer("N", 2, 65536); };
  EXPECT_EQ(read("2"), 2);
  EXPECT_EQ(read("65536"), 65536);
  EXPECT_EQ(read("007"), 7);
}

TEST(EnvironmentSnapshot, AMalformedIntegerIsNamedWithItsPlaceAndBounds) {
  struct Row {
    const char* text;
    const char* place;
  };
  const Row rows[] = {
      {"4x", "at offset 1 stands 'x'"},        {"-1", "at offset 0 stands '-1'"},
      {" 4", "at offset 0 stands ' 4'"},       {"4.0", "at offset 1 stands '.0'"},
      {"0x10", "at offset 1 stands 'x10'"},    {"1", "at offset 0 stands '1'"},
      {"65537", "at offset 0 stands '65537'"}, {"99999999999999999999999999", "at offset 0 stands '999999999999...'"},
      {"4\n", "at offset 1 stands '\\x0a'"}};
  for (const Row& row : rows) {
    expect_error<ClusterError>(
        [&] {
          Environment(Variables{{"N", row.text}}).integer("N", 2, 65536);
        },
        "LS-CLUSTER-VALUE", {"N is", row.place, "a whole number from 2 to 65536"});
  }
}

RC_GTEST_PROP(EnvironmentSnapshot, EachIntegerIsReadAsItIsWritten, (uint32_t number)) {
  const Environment environment({{"N", std::to_string(number)}});
  RC_ASSERT(environment.integer("N", 0, 0xffffffff) == static_cast<int64_t>(number));
}

RC_GTEST_PROP(EnvironmentSnapshot, AValueInAMessageIsOnePrintableLine, (const std::string& text)) {
  const std::string safe = internal::in_quotes(text, 10);
  RC_ASSERT(safe.size() <= 4 * 10 + 5);
  for (const char c : safe) RC_ASSERT(c >= 0x20 && c <= 0x7e);
}

}  // namespace
}  // namespace lockstep
