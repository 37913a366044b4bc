#include "lockstep/comm/join/socket_address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <cstring>
#include <memory>

namespace lockstep::internal::inline comm {

std::optional<SocketAddress> socket_address_of(const std::string& number, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* first = nullptr;
  if (getaddrinfo(number.c_str(), nullptr, &hints, &first) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(first, freeaddrinfo);
  SocketAddress address;
  address.size = first->ai_addrlen;
  std::memcpy(&address.storage, first->ai_addr, first->ai_addrlen);
  // The port lies at the same place in both families.
  reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = htons(port);
  return address;
}

std::string number_of(const sockaddr& address) {
  const socklen_t size = address.sa_family == AF_INET    ? sizeof(sockaddr_in)
                         : address.sa_family == AF_INET6 ? sizeof(sockaddr_in6)
                                                         : 0;
  std::array<char, NI_MAXHOST> text;
  if (size == 0 || getnameinfo(&address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text.data();
}

}  // namespace lockstep::internal::comm
