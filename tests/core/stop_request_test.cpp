// Signals that ask for a stop.
#include "lockstep/core/process/stop_request.h"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>

#include "tests/support/errors.h"

namespace lockstep {
namespace {

std::atomic<int> handled = 0;

class StopRequest : public ::testing::Test {
 protected:
  StopRequest() { internal::forget_stop_request(); }
  ~StopRequest() override { internal::forget_stop_request(); }
};

TEST_F(StopRequest, ComesByASignalWhichDoesNotEndTheProcess) {
  stop_on_signal(SIGUSR2);
  EXPECT_FALSE(internal::is_stop_requested());
  raise(SIGUSR2);
  EXPECT_TRUE(internal::is_stop_requested());
  raise(SIGUSR2);
}

TEST_F(StopRequest, ComesFromTheProgramToo) {
  request_stop();
  EXPECT_TRUE(internal::is_stop_requested());
}

TEST_F(StopRequest, CallsTheHandlerThatTheProgramHad) {
  std::signal(SIGUSR1, [](int) { ++handled; });
  stop_on_signal(SIGUSR1);
  stop_on_signal(SIGUSR1);  // not a second time
  raise(SIGUSR1);
  EXPECT_TRUE(internal::is_stop_requested());
  EXPECT_EQ(handled, 1);
}

TEST_F(StopRequest, CallsAHandlerThatGetsTheSignalsInformation) {
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t* info, void*) { handled = info->si_signo; };
  sigaction(SIGWINCH, &action, nullptr);
  stop_on_signal(SIGWINCH);
  raise(SIGWINCH);
  EXPECT_EQ(handled, SIGWINCH);
}

TEST_F(StopRequest, IsRefusedForSignalsThatNobodyCanHandle) {
  for (const int signal : {SIGKILL, 0, NSIG}) {
    testing::expect_error<UsageError>([&] { stop_on_signal(signal); }, "LS-OPTION", {std::to_string(signal)});
  }
}

}  // namespace
}  // namespace lockstep
