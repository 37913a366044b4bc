#include "lockstep/comm/join/reserved_port.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

// A port that is bound with SO_REUSEADDR, and not listened at, can be bound again with SO_REUSEADDR; and the system,
// where it chooses a port, passes over every port that is bound.
ReservedPort::ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  const bool has_port = socket_.is_open() &&
                        setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                        bind(socket_.get(), generic, size) == 0 && getsockname(socket_.get(), generic, &size) == 0;
  if (!has_port) {
    throw ClusterError("LS-CLUSTER-SOCKET", fmt::format("no port of 127.0.0.1 is free: {}", std::strerror(errno)),
                       "look at this host's limit of open files (ulimit -n)");
  }
  number_ = ntohs(address.sin_port);
}

}  // namespace lockstep::internal::comm
