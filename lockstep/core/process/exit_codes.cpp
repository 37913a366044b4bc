#include "lockstep/core/process/exit_codes.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

/// Of ClusterError: others did not come, could not be reached, an earlier process was not gone yet, or the system
/// lacked something for a moment.
constexpr std::array<std::string_view, 6> kPassing = {"LS-CLUSTER-JOIN",   "LS-CLUSTER-LOOK-UP",
                                                      "LS-CLUSTER-MEMORY", "LS-CLUSTER-SOCKET",
                                                      "LS-CLUSTER-TAKEN",  "LS-CLUSTER-UNREACHABLE"};

}  // namespace

ExitCode exit_code_of(const std::exception& error) noexcept {
  if (const auto* replica = dynamic_cast<const ReplicaError*>(&error); replica && replica->nested_ptr()) {
    try {
      std::rethrow_exception(replica->nested_ptr());
    } catch (const std::exception& nested) {
      return exit_code_of(nested);
    } catch (...) {
      return ExitCode::kBug;
    }
  }
  if (dynamic_cast<const PeerError*>(&error)) return ExitCode::kRestartable;
  if (const auto* cluster = dynamic_cast<const ClusterError*>(&error)) {
    const bool passes = std::find(kPassing.begin(), kPassing.end(), cluster->code()) != kPassing.end();
    return passes ? ExitCode::kRestartable : ExitCode::kConfiguration;
  }
  if (dynamic_cast<const UsageError*>(&error)) return ExitCode::kConfiguration;
  if (dynamic_cast<const DataError*>(&error) || dynamic_cast<const NonFiniteError*>(&error))
    return ExitCode::kDataError;
  if (dynamic_cast<const std::filesystem::filesystem_error*>(&error)) return ExitCode::kDataError;
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    const bool is_full = system->code() == std::errc::no_space_on_device ||
                         system->code() == std::error_code(EDQUOT, std::generic_category()) ||
                         system->code() == std::error_code(EDQUOT, std::system_category());
    if (is_full) return ExitCode::kDataError;
  }
  return ExitCode::kBug;
}

}  // namespace lockstep
