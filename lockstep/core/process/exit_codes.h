// With which exit code a worker's program should end, so that a launcher knows whether to start the job again.
#pragma once

#include <exception>

namespace lockstep {

/// The numbers are those of BSD's sysexits.h where it has one.
enum class ExitCode : int {
  kSuccess = 0,
  kDataError = 65,      // a file or a value is wrong; starting again does not mend it
  kBug = 70,            // of the program or of this library
  kRestartable = 75,    // another worker or the network failed: start all workers again, from the last checkpoint
  kConfiguration = 78,  // the program, its flags or its environment are wrong; starting again does not mend it
};

/// What `error` means for the job: PeerError, and a ClusterError that says that other workers did not come or could not
/// be reached, are restartable. UsageError and any other ClusterError are configuration. DataError and NonFiniteError
/// are data, and so are a std::filesystem::filesystem_error, and a std::system_error that says that a disk is full.
/// Everything else is a bug. A ReplicaError means what the exception nested in it means. Any thread may call.
///
///     int main(int argc, char** argv) try {
///       return train(argc, argv);
///     } catch (const std::exception& error) {
///       std::cerr << error.what() << "\n";
///       return static_cast<int>(lockstep::exit_code_of(error));
///     }
ExitCode exit_code_of(const std::exception& error) noexcept;

}  // namespace lockstep
