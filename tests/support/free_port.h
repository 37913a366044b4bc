// A port for a test that must know one before anybody listens there.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace lockstep::testing {

/// A TCP port of the loopback interface at which nobody listens now. Whoever asks for it by number, with SO_REUSEADDR
/// as workers do, gets it. This process keeps its last 16 ports bound, so that the system gives them to nobody who asks
/// for any port, such as the workers that are not the chief.
inline uint16_t free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool has_port = setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
                        bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                        getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (!has_port) throw std::runtime_error("no port of 127.0.0.1 is free");
  static std::array<std::atomic<int>, 16> kept{};  // sockets; 0 where there is none yet
  static std::atomic<std::size_t> count{0};
  const int oldest = kept[count++ % kept.size()].exchange(socket);
  if (oldest != 0) close(oldest);
  return ntohs(address.sin_port);
}

}  // namespace lockstep::testing
