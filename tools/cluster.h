// `lockstep cluster`: who this process would be, and who says so.
#pragma once

namespace lockstep::tools {

struct ClusterCommandOptions {
  bool json = false;  // a JSON object on standard output instead of a table
};

/// Prints what resolve_cluster() makes of this process's environment; gives the exit code, 1 where something disagrees.
int show_cluster(const ClusterCommandOptions& options);

}  // namespace lockstep::tools
