// Addresses as asio takes them.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "lockstep/comm/join/socket_address.h"

namespace lockstep::internal::inline comm {

/// The end of a connection by `Protocol`, as asio::ip::tcp, at a number such as "10.0.3.7" or "fe80::1%eth0"; nothing
/// where it is no number.
template <class Protocol>
std::optional<typename Protocol::endpoint> endpoint_of(const std::string& number, uint16_t port) {
  const std::optional<SocketAddress> system = socket_address_of(number, port);
  if (!system) return std::nullopt;
  typename Protocol::endpoint endpoint;
  std::memcpy(endpoint.data(), system->generic(), system->size);
  endpoint.resize(system->size);
  return endpoint;
}

}  // namespace lockstep::internal::comm
