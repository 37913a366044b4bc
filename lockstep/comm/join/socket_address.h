// The system's form of addresses, IPv4 and IPv6.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::internal::inline comm {

/// What connect() and bind() take.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  sockaddr* generic() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// The system's form of a number such as "10.0.3.7" or "fe80::1%eth0"; nothing where it is none.
std::optional<SocketAddress> socket_address_of(const std::string& number, uint16_t port);

/// The number of an address; empty where it is neither IPv4 nor IPv6.
std::string number_of(const sockaddr& address);

}  // namespace lockstep::internal::comm
