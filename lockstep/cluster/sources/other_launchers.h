// Launchers that tell their processes a rank in variables of their own, and that no file here is named after.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/cluster/sources/environment.h"

namespace lockstep::internal::inline cluster {

/// Flux, PALS, JSM, ALPS, POE, Horovod and MVAPICH's mpirun_rsh: the first one whose rank or size is set. Where one of
/// both is set, so must the other be, but that a size of 1 needs no rank. A launcher that sets no size, as PALS, has
/// PMI_SIZE beside its rank; where that is not there, LOCKSTEP_NUM_WORKERS is the size. Gives nothing for a size of 1.
/// The source's name is `name_of_other_launcher`.
std::optional<ClusterSpec> other_launcher(const Environment& environment);

/// "Flux", for what other_launcher() reads; empty where it does not apply.
std::string name_of_other_launcher(const Environment& environment);

/// Whether the variable says which process of a job this one is, by one of these launchers.
bool is_of_other_launcher(std::string_view variable);

/// Those variables that say that this process is one of several where no source applies, "MPI_LOCALRANKID=1": a rank of
/// a launcher, known or not, a rank among the workers of a host, or a rank and a size under names that nobody here
/// knows. Nothing where what is there is left over from a single process.
std::vector<std::string> ranks_that_nobody_reads(const Environment& environment);

}  // namespace lockstep::internal::cluster
