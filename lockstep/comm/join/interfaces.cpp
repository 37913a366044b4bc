#include "lockstep/comm/join/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <system_error>

#include "lockstep/cluster/address.h"
#include "lockstep/cluster/named_text.h"
#include "lockstep/comm/join/socket_address.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

bool is_ipv6(const std::string& address) { return address.find(':') != std::string::npos; }
bool is_link_local(const std::string& address) {
  return address.starts_with("fe80:") || address.starts_with("169.254.");
}

/// "lo (127.0.0.1), eth0 (10.0.3.7)".
std::string list_of(const std::vector<InterfaceAddress>& interfaces) {
  std::string list;
  for (const auto& [name, address] : interfaces)
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", name, address);
  return list.empty() ? "none" : list;
}

[[noreturn]] void refuse(const std::string& fact, const NetworkView& view) {
  throw ClusterError("LS-CLUSTER-INTERFACE", fact,
                     fmt::format("set LOCKSTEP_INTERFACE to one of: {}", list_of(view.interfaces)));
}

/// The interface that has the address.
const InterfaceAddress* find(const std::vector<InterfaceAddress>& interfaces, const std::string& address) {
  // The whole network 127.0.0.0/8 is the loopback interface's, which lists one address of it.
  const bool is_loopback_ipv4 = is_loopback(address) && !is_ipv6(address);
  const std::string listed = is_loopback_ipv4 ? "127.0.0.1" : address;
  const auto found = std::find_if(interfaces.begin(), interfaces.end(), [&](const InterfaceAddress& i) {
    return is_ip_number(i.address) && !hosts_differ(i.address, listed);
  });
  return found == interfaces.end() ? nullptr : &*found;
}

/// The best address of the interface that was named.
InterfaceAddress named_interface(const std::string& name, const NetworkView& view) {
  const bool wants_ipv6 = !view.chief.empty() && std::all_of(view.chief.begin(), view.chief.end(), is_ipv6);
  // The lower, the better.
  const auto rank = [&](const std::string& address) {
    return (is_link_local(address) ? 2 : 0) + (is_ipv6(address) != wants_ipv6 ? 1 : 0);
  };
  const InterfaceAddress* best = nullptr;
  for (const InterfaceAddress& one : view.interfaces) {
    if (one.name == name && (best == nullptr || rank(one.address) < rank(best->address))) best = &one;
  }
  if (best == nullptr) refuse(fmt::format("there is no network interface {} with an address", in_quotes(name)), view);
  return *best;
}

/// A host of the description, other than `own`; nothing where none is named.
std::optional<std::string> another_host(const ClusterSpec& spec, const std::string& own) {
  for (const auto& [job, addresses] : spec.jobs) {
    for (const std::string& address : addresses) {
      if (address.empty()) continue;
      const std::string host = parse_address({"an address", address}).host;
      if (hosts_differ(host, own) && !is_loopback(host) && host != "localhost") return host;
    }
  }
  return std::nullopt;
}

std::string chief_host(const ClusterSpec& spec) {
  const std::string address = spec.chief_address();
  return address.empty() ? "" : parse_address({"the chief's address", address}).host;
}

/// Whether this host is the chief's, and by which address; those that others can reach come first.
const InterfaceAddress* as_chief(const NetworkView& view) {
  const InterfaceAddress* loopback = nullptr;
  for (const std::string& address : view.chief) {
    const InterfaceAddress* own = find(view.interfaces, address);
    if (own != nullptr && !is_loopback(address)) return own;
    if (own != nullptr && loopback == nullptr) loopback = own;
  }
  return loopback;
}

}  // namespace

bool is_loopback(const std::string& address) {
  in_addr v4;
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool is_private(const std::string& address) {
  if (is_loopback(address) || is_link_local(address)) return true;
  in_addr v4;
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) {
    const uint32_t number = ntohl(v4.s_addr);
    const auto begins_with = [&](uint32_t network, int bits) { return (number ^ network) >> (32 - bits) == 0; };
    return begins_with(0x0a000000, 8) || begins_with(0xac100000, 12) || begins_with(0xc0a80000, 16) ||
           begins_with(0x64400000, 10);
  }
  in6_addr v6;
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 && (v6.s6_addr[0] & 0xfe) == 0xfc;
}

bool is_wildcard(const std::string& address) {
  in_addr v4;
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return v4.s_addr == INADDR_ANY;
  in6_addr v6;
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

std::string in_own_zone(const std::string& host, const std::string& interface_name,
                        const std::vector<InterfaceAddress>& interfaces) {
  if (!needs_zone(host)) return host;
  if (!interface_name.empty()) return in_zone(host, interface_name);
  std::set<std::string> possible;
  for (const InterfaceAddress& one : interfaces) {
    if (one.name == zone_of(host)) return host;
    if (needs_zone(one.address)) possible.insert(one.name);
  }
  if (possible.size() == 1) return in_zone(host, *possible.begin());
  refuse(fmt::format("{} means another host on each network, and this host has {} interfaces that may lead to it",
                     in_quotes(host), possible.size()),
         {interfaces, {}, {}});
}

std::vector<InterfaceAddress> network_interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    throw ClusterError("LS-CLUSTER-INTERFACE",
                       "the network interfaces cannot be listed: " + std::generic_category().message(errno),
                       "let the program use netlink sockets");
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const std::string address = number_of(*one->ifa_addr);
    if (!address.empty()) all.push_back({one->ifa_name, address});
  }
  return all;
}

std::optional<std::string> route_source(const std::string& address) {
  const std::optional<SocketAddress> to = socket_address_of(address, /*port=*/9);
  if (!to) return std::nullopt;
  const int probe = socket(to->generic()->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return std::nullopt;
  // Connecting a datagram socket only looks up the route.
  SocketAddress from;
  from.size = sizeof(from.storage);
  const bool found =
      connect(probe, to->generic(), to->size) == 0 && getsockname(probe, from.generic(), &from.size) == 0;
  close(probe);
  return found ? std::optional(number_of(*from.generic())) : std::nullopt;
}

OwnAddress choose_interface(const ClusterSpec& spec, const NetworkView& view) {
  const std::string chief = chief_host(spec);
  const InterfaceAddress* here = as_chief(view);
  const auto checked = [&](const InterfaceAddress& chosen) -> OwnAddress {
    if (!is_loopback(chosen.address)) return {chosen.name, chosen.address, here != nullptr};
    std::optional<std::string> other = another_host(spec, chief);
    if (!other && here == nullptr && !chief.empty()) other = chief;
    if (!other) return {chosen.name, chosen.address, here != nullptr};
    refuse(fmt::format("this worker would offer {} ({}) to {}, which cannot reach it", chosen.address, chosen.name,
                       in_quotes(*other)),
           view);
  };
  if (!spec.interface_name.empty()) return checked(named_interface(spec.interface_name, view));
  if (view.chief.empty()) return {"lo", "127.0.0.1", false};
  if (here != nullptr) return checked(*here);
  for (const std::string& address : view.chief) {
    if (is_wildcard(address)) refuse(fmt::format("the chief's address is {}, which names no host", address), view);
    const std::optional<std::string> source = view.route_source(address);
    const InterfaceAddress* own = source ? find(view.interfaces, *source) : nullptr;
    if (own != nullptr) return checked(*own);
  }
  refuse(fmt::format("there is no route from this host to the chief, {} ({})", spec.chief_address(),
                     fmt::join(view.chief, ", ")),
         view);
}

OwnAddress choose_interface(const ClusterSpec& spec, std::chrono::milliseconds longest) {
  NetworkView view{network_interfaces(), {}, route_source};
  const std::string chief = chief_host(spec);
  if (!chief.empty()) view.chief = look_up(in_own_zone(chief, spec.interface_name, view.interfaces), longest);
  return choose_interface(spec, view);
}

}  // namespace lockstep::internal::comm
