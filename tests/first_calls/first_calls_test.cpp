// The first calls of a process have the bits of later ones, in many processes: see core/process/warm_up.h.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/support/run_program.h"

namespace lockstep::testing {
namespace {

/// How many processes each test starts. scripts/test-first-calls asks for more.
int processes() {
  const char* const asked = std::getenv("LOCKSTEP_FIRST_CALL_PROCESSES");
  return asked != nullptr ? std::atoi(asked) : 3;
}

constexpr int kFunctions = 58;  // another one is the first in each process

/// What follows `label` on its line of the output.
std::string said(const std::string& output, const std::string& label) {
  const std::size_t begin = output.find(label);
  if (begin == std::string::npos) return "";
  return output.substr(begin + label.size(), output.find('\n', begin) - begin - label.size());
}

Result first_calls(const std::string& way, int first) {
  // Some ways compute with one intra-op thread and others with as many as there are cores, and on some processors MKL's
  // transforms have other bits then.
  ::setenv("OMP_NUM_THREADS", "1", /*replace=*/1);
  const std::string arguments = way + " " + std::to_string(first);
  if (way.starts_with("late ")) {
    return run_program(LOCKSTEP_FIRST_CALLS_LATE,
                       std::string(LOCKSTEP_FIRST_CALLS_PLUG_IN) + arguments.substr(std::string("late").size()));
  }
  return run_program(LOCKSTEP_FIRST_CALLS, arguments);
}

class FirstCallsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FirstCallsTest, HaveTheBitsOfLaterOnesInEachProcess) {
  // The same bits whichever function is the first, and whichever threads compute.
  static std::map<std::string, std::string> digests;
  for (int i = 0; i < processes(); ++i) {
    const int first = i * 7 % kFunctions;  // 7 and 58 have no common divisor
    const Result result = first_calls(GetParam(), first);
    ASSERT_EQ(result.code, 0) << "with function " << first << " as the first: " << result.output;
    digests[said(result.output, "digest ")] += std::string(" ") + GetParam();
  }
  EXPECT_EQ(digests.size(), 1U) << ::testing::PrintToString(digests);
}

INSTANTIATE_TEST_SUITE_P(OnTwoThreads, FirstCallsTest,
                         ::testing::Values("lanes", "workers", "readers", "own-threads", "first-tensors", "late lanes",
                                           "late readers", "late own-threads"),
                         [](const auto& way) {
                           std::string name = way.param;
                           for (char& c : name) c = c == ' ' || c == '-' ? '_' : c;
                           return name;
                         });

/// This fails without the warm-up in each process, whatever the threads' timing.
TEST(FirstCalls, FindTheProcessorBeforeASecondThreadComputes) {
  for (const std::string way : {"lanes", "workers", "readers", "own-threads", "late lanes", "late readers"}) {
    const Result result = first_calls(way, 0);
    const std::string detected = said(result.output, "detected ");
    if (detected == "no MKL") GTEST_SKIP() << "this LibTorch has no MKL";
    EXPECT_EQ(detected, "1 on the main thread alone") << way;
  }
  // Here the threads begin before any tensor is there; the one that comes second waits.
  EXPECT_EQ(said(first_calls("first-tensors", 0).output, "detected ").substr(0, 2), "1 ");
}

}  // namespace
}  // namespace lockstep::testing
