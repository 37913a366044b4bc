// What an error means for the job.
#include "lockstep/core/process/exit_codes.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

/// The code of an error that a step threw on one replica.
ExitCode in_a_step(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (...) {
    try {
      throw ReplicaError(3, {{.replica = ReplicaId(0), .message = "m", .exception = thrown}});
    } catch (const std::exception& error) {
      return exit_code_of(error);
    }
  }
}

template <class E>
void expect_code(const E& error, ExitCode code) {
  EXPECT_EQ(exit_code_of(error), code) << error.what();
  EXPECT_EQ(in_a_step(std::make_exception_ptr(error)), code) << error.what();
}

TEST(ExitCodes, TellRestartableConfigurationDataAndBugApart) {
  expect_code(PeerError("LS-PEER-LOST", "worker 1 is gone", "start again"), ExitCode::kRestartable);
  expect_code(ClusterError("LS-CLUSTER-JOIN", "worker 1 is missing", "start it"), ExitCode::kRestartable);
  expect_code(ClusterError("LS-CLUSTER-UNREACHABLE", "worker 1", "open it"), ExitCode::kRestartable);
  expect_code(ClusterError("LS-CLUSTER-TAKEN", "worker 1 is there", "end it"), ExitCode::kRestartable);
  expect_code(ClusterError("LS-CLUSTER-DIFFERS", "worker 1 has another build", "build it"), ExitCode::kConfiguration);
  expect_code(ClusterError("LS-CLUSTER-VALUE", "WORLD_SIZE", "correct it"), ExitCode::kConfiguration);
  expect_code(UsageError("LS-OPTION", "an option", "correct it"), ExitCode::kConfiguration);
  expect_code(DataError("LS-DATA-CHANGED", "a file", "restore it"), ExitCode::kDataError);
  expect_code(NonFiniteError("LS-NOT-FINITE", "a loss", "lower the rate"), ExitCode::kDataError);
  const auto full = std::make_error_code(std::errc::no_space_on_device);
  expect_code(std::filesystem::filesystem_error("cannot write", "model.pt", full), ExitCode::kDataError);
  expect_code(std::system_error(full), ExitCode::kDataError);
  expect_code(std::system_error(EDQUOT, std::system_category()), ExitCode::kDataError);
  expect_code(std::system_error(EAGAIN, std::system_category()), ExitCode::kBug);
  expect_code(InternalError("LS-INTERNAL", "a mistake", "report it"), ExitCode::kBug);
  expect_code(std::out_of_range("a mistake of the program"), ExitCode::kBug);
  expect_code(std::bad_alloc(), ExitCode::kBug);
}

TEST(ExitCodes, TakeWhatIsNoExceptionForABug) { EXPECT_EQ(in_a_step(std::make_exception_ptr(7)), ExitCode::kBug); }

}  // namespace
}  // namespace lockstep
