// Workers that are processes of any hosts and exchange bytes over the network.
#pragma once

#include <memory>

#include "lockstep/comm/messenger.h"
#include "lockstep/comm/network/join/network_rendezvous.h"
#include "lockstep/comm/timeouts.h"
#include "lockstep/comm/world.h"

namespace lockstep::internal::inline comm {

/// Connects the workers that have met, and gives this one's World. While it lives, a thread watches the other workers,
/// and a worker that is gone, frozen or cut off ends the run for all, with one text on all (see Control).
///
/// The n-th call of agree() or exchange() succeeds on all survivors or on none (see EndOfRun). The thread that calls
/// moves the bytes itself; it sleeps while there is nothing to move.
std::shared_ptr<World> connect_network(std::unique_ptr<NetworkRendezvous> rendezvous, const WorkerTimeouts& timeouts);

/// The same, and then the messenger of a plug-in moves the bytes of calls in place of the connections for data. The
/// workers tell each other their addresses by those connections. Where a worker cannot use the messenger, or has none,
/// the connections stay, on all workers; with `is_required` a ClusterError (LS-CLUSTER-ENGINE) on all names that
/// worker.
std::shared_ptr<World> connect_network(std::unique_ptr<NetworkRendezvous> rendezvous, const WorkerTimeouts& timeouts,
                                       std::shared_ptr<Messenger> messenger, bool is_required);

}  // namespace lockstep::internal::comm
