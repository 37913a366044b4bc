#include "tools/exit_status.h"

#include "lockstep/cluster/sources/environment.h"
#include "lockstep/core/error.h"

namespace lockstep::tools {

int exit_status(ExitStatus alone, ExitCode to_launcher) {
  return Environment::of_process().has("LOCKSTEP_RESTART_COUNT") ? static_cast<int>(to_launcher) : alone;
}

int exit_status(const std::exception& error) {
  if (dynamic_cast<const UsageError*>(&error)) return kUsage;
  const bool is_environment = dynamic_cast<const DataError*>(&error) || dynamic_cast<const ClusterError*>(&error);
  return exit_status(is_environment ? kEnvironment : kFindings, exit_code_of(error));
}

}  // namespace lockstep::tools
