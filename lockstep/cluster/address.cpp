#include "lockstep/cluster/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

namespace lockstep::internal::inline cluster {

namespace {

constexpr std::size_t kLongestName = 253;  // of a host in the domain name system
constexpr std::size_t kLongestZone = 15;   // of a network interface's name
constexpr const char* kExpected = "host:port or [IPv6 address]:port, with a port from 1 to 65535,";

bool is_letter_or_digit(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// The bytes of an IPv4 or IPv6 number, the latter without its zone; nothing where `host` is none.
std::optional<std::string> ip_bytes(const std::string& host) {
  std::array<char, sizeof(in6_addr)> bytes;
  if (inet_pton(AF_INET, host.c_str(), bytes.data()) == 1) return std::string(bytes.data(), sizeof(in_addr));
  if (inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), bytes.data()) == 1) {
    return std::string(bytes.data(), sizeof(in6_addr));
  }
  return std::nullopt;
}

/// Whether it is an IPv6 number, perhaps with a zone: "fe80::1%eth0".
bool is_ipv6(const std::string& host) {
  const std::size_t percent = host.find('%');
  if (percent != std::string::npos) {
    const std::string zone = host.substr(percent + 1);
    const auto fits = [](char c) { return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.'; };
    if (zone.empty() || zone.size() > kLongestZone || !std::all_of(zone.begin(), zone.end(), fits)) return false;
  }
  in6_addr bytes;
  const std::string number = host.substr(0, percent);
  return number.find('\0') == std::string::npos && inet_pton(AF_INET6, number.c_str(), &bytes) == 1;
}

/// The place of the first character that a host's name cannot have; npos where it is a name.
std::size_t wrong_in_name(std::string_view host) {
  if (host.empty()) return 0;
  for (std::size_t at = 0; at < host.size(); ++at) {
    const bool inner = at > 0 && (host[at] == '-' || host[at] == '.');
    if (!is_letter_or_digit(host[at]) && host[at] != '_' && !inner) return at;
  }
  return host.size() > kLongestName ? kLongestName : std::string_view::npos;
}

}  // namespace

Address parse_address(const NamedText& value) {
  const std::string& text = value.text;
  const bool bracketed = text.starts_with('[');
  const std::size_t end = bracketed ? text.find(']') : text.find(':');
  if (end == std::string::npos) throw_malformed(value, text.size(), kExpected);
  const std::string host = bracketed ? text.substr(1, end - 1) : text.substr(0, end);
  if (bracketed && !is_ipv6(host)) throw_malformed(value, 1, "an IPv6 address");
  if (!bracketed) {
    const std::size_t wrong = wrong_in_name(host);
    if (wrong != std::string::npos) throw_malformed(value, wrong, kExpected);
  }
  const std::size_t colon = bracketed ? end + 1 : end;
  if (colon >= text.size() || text[colon] != ':') throw_malformed(value, colon, "':' and a port");
  int port = 0;
  for (std::size_t at = colon + 1; at < text.size(); ++at) {
    if (text[at] == ':') throw_malformed(value, 0, "an IPv6 address in brackets, or one port,");
    if (text[at] < '0' || text[at] > '9') throw_malformed(value, at, "a port from 1 to 65535");
    port = 10 * port + (text[at] - '0');
    if (port > 65535) throw_malformed(value, colon + 1, "a port from 1 to 65535");
  }
  if (port == 0) throw_malformed(value, colon + 1, "a port from 1 to 65535");
  return {host, static_cast<uint16_t>(port)};
}

std::string parse_host(const NamedText& value) {
  const std::string& text = value.text;
  if (text.size() > 2 && text.front() == '[' && text.back() == ']' && is_ipv6(text.substr(1, text.size() - 2))) {
    return text.substr(1, text.size() - 2);
  }
  if (is_ipv6(text)) return text;
  const std::size_t wrong = wrong_in_name(text);
  if (wrong != std::string::npos) throw_malformed(value, wrong, "the name or number of a host");
  return text;
}

std::string to_string(const Address& address) {
  const bool ipv6 = address.host.find(':') != std::string::npos;
  return ipv6 ? fmt::format("[{}]:{}", address.host, address.port) : fmt::format("{}:{}", address.host, address.port);
}

bool needs_zone(const std::string& host) {
  in6_addr bytes;
  return inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &bytes) == 1 && IN6_IS_ADDR_LINKLOCAL(&bytes);
}

std::string zone_of(const std::string& host) {
  const std::size_t percent = host.find('%');
  return percent == std::string::npos ? "" : host.substr(percent + 1);
}

std::string without_zone(const std::string& host) { return needs_zone(host) ? host.substr(0, host.find('%')) : host; }

std::string in_zone(const std::string& host, const std::string& zone) {
  return needs_zone(host) && !zone.empty() ? without_zone(host) + "%" + zone : host;
}

bool is_ip_number(const std::string& host) { return ip_bytes(host).has_value(); }

bool hosts_differ(const std::string& a, const std::string& b) {
  const std::optional<std::string> a_bytes = ip_bytes(a);
  const std::optional<std::string> b_bytes = ip_bytes(b);
  if (a_bytes && b_bytes) return *a_bytes != *b_bytes;
  if (a_bytes || b_bytes) return false;
  const auto lower = [](std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
  };
  const std::string x = lower(a);
  const std::string y = lower(b);
  return x != y && !x.starts_with(y + ".") && !y.starts_with(x + ".");
}

}  // namespace lockstep::internal::cluster
