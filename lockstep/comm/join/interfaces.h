// Which network interface and address this worker uses, and the names of hosts.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/cluster_spec.h"

namespace lockstep::internal::inline comm {

/// An address of a network interface. An interface may have several.
struct InterfaceAddress {
  std::string name;     // of the interface, such as "eth0"
  std::string address;  // "10.0.3.7", "fd00::7", "fe80::1%eth0"
};

/// The addresses of all interfaces that are up.
std::vector<InterfaceAddress> network_interfaces();

/// Whether only this host can reach the address: 127.0.0.0/8 and ::1.
bool is_loopback(const std::string& address);
/// Whether no host of the Internet can reach the address by itself: loopback, link-local and private networks (RFC 1918
/// and 6598, fc00::/7).
bool is_private(const std::string& address);
/// Whether it stands for all addresses of a host: 0.0.0.0 and ::.
bool is_wildcard(const std::string& address);

/// A host as this one reaches it. An IPv6 number that needs a zone (fe80::1) gets that of this host, whatever zone it
/// was given on another one: `interface_name` where that is not empty, the zone that it has where this host has an
/// interface of that name, or the only interface with such an address. A ClusterError (LS-CLUSTER-INTERFACE) where
/// these are several, or none. Every other host stays as it is.
std::string in_own_zone(const std::string& host, const std::string& interface_name,
                        const std::vector<InterfaceAddress>& interfaces);

/// The numbers of a host, in the order in which the system gives them, without duplicates. It waits for `longest` at
/// most. A ClusterError (LS-CLUSTER-LOOK-UP) where the name is not known, or the answer takes longer.
std::vector<std::string> look_up(const std::string& host, std::chrono::milliseconds longest);

/// The local address from which the system would reach an address; nothing where there is no route. No packet is sent.
std::optional<std::string> route_source(const std::string& address);

/// The system as choose_interface() sees it.
struct NetworkView {
  std::vector<InterfaceAddress> interfaces;
  /// The chief's host as numbers; empty where there is no chief's address.
  std::vector<std::string> chief;
  std::function<std::optional<std::string>(const std::string&)> route_source;
};

/// How other workers reach this one.
struct OwnAddress {
  std::string interface_name;
  std::string address;
  /// Whether the chief's address is one of this host.
  bool chief_is_here = false;
};

/// The interface and address at which other workers reach this one. A ClusterError (LS-CLUSTER-INTERFACE) names the
/// interface and those that exist.
///
/// - With ClusterSpec::interface_name, that interface: an address of the chief's family where it has one, otherwise
///   IPv4 before IPv6, link-local addresses last.
/// - Otherwise, if the chief's address is one of this host, that address, loopback addresses last.
/// - Otherwise the address from which the system would reach the chief.
/// - Without a chief's address, the loopback address.
///
/// A loopback address is an error where the description names another host, because that host could not use it.
OwnAddress choose_interface(const ClusterSpec& spec, const NetworkView& view);

/// The same on this machine. Waits at most `longest` for the look-up of the chief's name. Call from any thread.
OwnAddress choose_interface(const ClusterSpec& spec, std::chrono::milliseconds longest = std::chrono::seconds(10));

}  // namespace lockstep::internal::comm
