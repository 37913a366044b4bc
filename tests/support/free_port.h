// A port for a test that must know one before anybody listens there.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

namespace lockstep::testing {

/// A TCP port of the loopback interface at which nobody listens now. The system gives it to no other program soon.
inline uint16_t free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool has_port = bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                        getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(socket);
  if (!has_port) throw std::runtime_error("no port of 127.0.0.1 is free");
  return ntohs(address.sin_port);
}

}  // namespace lockstep::testing
