#include "tests/support/hosts.h"

#include <utility>

#include "lockstep/comm/network/network_world.h"

namespace lockstep::testing {

std::shared_ptr<World> join_from_host(const HostedWorker& one) {
  auto network = std::make_unique<internal::NetworkRendezvous>(
      internal::NetworkJob{.num_workers = static_cast<int64_t>(one.hosts.size()),
                           .worker_index = one.worker,
                           .chief = {"127.0.0.1"},
                           .chief_port = one.port,
                           .own_address = "127.0.0.1",
                           .secret = "a secret of the test",
                           .must_match = "test",
                           .plaintext = one.plaintext,
                           .host_id = one.hosts.substr(static_cast<std::size_t>(one.worker), 1)});
  network->meet(one.timeouts.join);
  return internal::connect_network(std::move(network), one.timeouts);
}

}  // namespace lockstep::testing
