// What a source of the cluster's description is, for sources of one's own.
#pragma once

#include <optional>
#include <string>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/cluster/sources/environment.h"

namespace lockstep {

/// One source: a scheduler, a launcher, a file. `resolve_cluster` asks those in `ClusterOptions::resolvers` before its
/// own, and calls each at most once, on the caller's thread.
class ClusterResolver {
 public:
  virtual ~ClusterResolver() = default;

  /// What ClusterSpec::source says, such as "HTCondor".
  virtual std::string name() const = 0;
  /// Who this process is; nothing where this source does not apply. A ClusterError where it applies and its values are
  /// malformed or incomplete. `source` and `disagreements` of the result are not used.
  virtual std::optional<ClusterSpec> resolve(const Environment& environment) const = 0;
};

}  // namespace lockstep
