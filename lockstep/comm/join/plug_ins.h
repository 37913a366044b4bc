// Engines that are not part of the library, and are loaded when a job asks for them.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/messenger.h"

namespace lockstep::internal::inline comm {

/// Whether the engine is a plug-in: "ucx", "mpi".
bool is_plug_in(const std::string& engine);

/// Loads the engine's plug-in, once for a process, and makes its messenger. It is looked for beside the library, and
/// then where the system looks for libraries. A ClusterError (LS-CLUSTER-ENGINE) where it is not there, does not fit,
/// or cannot work here.
std::shared_ptr<Messenger> load_messenger(const std::string& engine, const MessengerSetup& setup);

/// Whether this host has a network device with RDMA.
bool has_rdma_device();

}  // namespace lockstep::internal::comm
