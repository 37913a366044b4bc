// The matcher with which tests look at errors fails where the error is another one.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace lockstep::testing {
namespace {

void throw_one() { throw UsageError("LS-TEST", std::string("variable 'w' of replica 12 has 3 elements"), "give it 4"); }

/// As a run of one replica that throws it.
void throw_in_step() {
  try {
    throw_one();
  } catch (const std::exception& error) {
    throw ReplicaError(7, {{0, error.what(), std::current_exception()}});
  }
}

TEST(ErrorMatcher, FindsValuesAsWholeWords) {
  const std::string text = "variable 'w' of replica 12 has 3 elements";
  for (const char* value : {"variable 'w'", "replica 12", "'w'", "3", "12 has"}) EXPECT_TRUE(has_value(text, value));
  for (const char* value : {"replica 1", "2", "eplica 12", "element", "'v'"}) EXPECT_FALSE(has_value(text, value));
}

TEST(ErrorMatcher, TakesTheErrorThatIsMeant) {
  expect_error<UsageError>(throw_one, "LS-TEST", {"variable 'w'", "replica 12"});
  expect_step_error<UsageError>(throw_in_step, "LS-TEST", {"variable 'w'", "replica 0"});
  EXPECT_EQ(error_from<ReplicaError>(throw_in_step).step(), 7);
}

TEST(ErrorMatcher, FailsOnAnotherTypeCodeOrValueAndOnNone) {
  EXPECT_NONFATAL_FAILURE(expect_error<UsageError>(throw_one, "LS-OTHER"), "LS-OTHER");
  EXPECT_NONFATAL_FAILURE(expect_error<UsageError>(throw_one, "LS-TEST", {"replica 1"}), "replica 1");
  EXPECT_NONFATAL_FAILURE(expect_error<DataError>(throw_one, "LS-TEST"), "another exception");
  EXPECT_NONFATAL_FAILURE(expect_error<UsageError>([] {}, "LS-TEST"), "nothing was thrown");
  EXPECT_NONFATAL_FAILURE(expect_error<UsageError>(throw_in_step, "LS-TEST"), "another exception");
  EXPECT_NONFATAL_FAILURE(expect_step_error<UsageError>(throw_one, "LS-TEST"), "another exception");
  EXPECT_NONFATAL_FAILURE(expect_step_error<DataError>(throw_in_step, "LS-TEST"), "another exception");
}

}  // namespace
}  // namespace lockstep::testing
