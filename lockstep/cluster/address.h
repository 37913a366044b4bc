// Where a worker can be reached: a host and a port.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/cluster/named_text.h"

namespace lockstep::internal::inline cluster {

/// A host, by name or by number, and a TCP port. An IPv6 host is stored without its brackets.
struct Address {
  std::string host;
  uint16_t port = 0;

  friend bool operator==(const Address&, const Address&) = default;
};

/// Reads "host:port" or "[::1]:port". The port is 1 to 65535. Anything else is a ClusterError (LS-CLUSTER-VALUE).
Address parse_address(const NamedText& value);

/// Reads a host without a port: a name of letters, digits, '-', '_' and '.', at most 253 characters, or an IPv4 or IPv6
/// number, the latter with or without brackets. The result has no brackets. Else a ClusterError (LS-CLUSTER-VALUE).
std::string parse_host(const NamedText& value);

/// "host:port", with brackets around an IPv6 host.
std::string to_string(const Address& address);

/// Whether it is an IPv6 number that means another host on each network: fe80::/10, with or without a zone.
bool needs_zone(const std::string& host);
/// The zone of an IPv6 number, "eth0" of "fe80::1%eth0"; empty where there is none. It is the name of an interface of
/// the host that uses the number, and means nothing to other hosts.
std::string zone_of(const std::string& host);
/// The number as other hosts may hear it: "fe80::1". Every other host as it is.
std::string without_zone(const std::string& host);
/// The number as this host uses it: with this zone, in place of any other, where it needs one and `zone` is not empty.
std::string in_zone(const std::string& host, const std::string& zone);

/// Whether the host is an IPv4 or IPv6 number.
bool is_ip_number(const std::string& host);

/// Whether two hosts are certainly different. A short name and a full name that begins with it are not, and neither are
/// a name and a number, because only a look-up could tell.
bool hosts_differ(const std::string& a, const std::string& b);

}  // namespace lockstep::internal::cluster
