// Slurm's short forms of lists: "n[1-3,7]" for hosts, and "2(x3),1" for tasks on each of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cluster/named_text.h"

namespace lockstep::internal::inline cluster {

/// The hosts of a list, in its order. Brackets have numbers and ranges, whose leading zeros stay: "n[08-10]" is n08,
/// n09, n10. A name may have several brackets, of which the last one varies fastest, and text after them. A list of
/// more than `most` hosts, a malformed one, or a host that is no host's name is a ClusterError (LS-CLUSTER-VALUE).
std::vector<std::string> expand_host_list(const NamedText& value, int64_t most);

/// How many tasks each host has: "2(x3),1" is 2, 2, 2, 1. More than `most` hosts or tasks, a count of 0, or a malformed
/// text is a ClusterError (LS-CLUSTER-VALUE).
std::vector<int64_t> expand_tasks_per_node(const NamedText& value, int64_t most);

}  // namespace lockstep::internal::cluster
