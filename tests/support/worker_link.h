// What a test and its worker processes know of each other.
#pragma once

namespace lockstep::testing {

/// The file descriptor by which a worker and its test exchange messages: a socket that keeps their boundaries. A report
/// begins with its time.
constexpr int kLink = 3;

constexpr const char* kBodyVariable = "LOCKSTEP_TEST_BODY";
constexpr const char* kIndexVariable = "LOCKSTEP_TEST_WORKER";
constexpr const char* kParentVariable = "LOCKSTEP_TEST_PARENT";

// Exit codes of workers.
constexpr int kBodyHasThrown = 3;
constexpr int kTestHasEnded = 4;

}  // namespace lockstep::testing
