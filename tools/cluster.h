// `lockstep cluster`: who this process would be, and who says so.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::tools {

struct ClusterCommandOptions {
  bool json = false;  // a JSON object on standard output instead of a table
  /// Meets the other workers, each of which must run the same command, and shows who was reached.
  bool check = false;
  int64_t check_seconds = 60;  // how long it waits for them
  std::string engine = "auto";
};

/// Prints what resolve_cluster() makes of this process's environment; gives the exit code, 1 where something disagrees.
/// Where the other workers could not be met it prints what is known of each, and then throws the reason.
int show_cluster(const ClusterCommandOptions& options);

}  // namespace lockstep::tools
