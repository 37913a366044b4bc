#include "tools/run/host_share.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/cluster/address.h"
#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/cluster/named_text.h"
#include "lockstep/comm/join/interfaces.h"
#include "lockstep/core/error.h"

namespace lockstep::tools {

namespace {

using internal::is_ip_number;

bool is_own_address(const ThisHost& self, const std::string& address) {
  if (internal::is_loopback(address)) return true;  // the whole network 127.0.0.0/8
  return std::any_of(self.addresses.begin(), self.addresses.end(),
                     [&](const std::string& own) { return !internal::hosts_differ(own, address); });
}

/// Whether the line says it by itself.
bool names(const ThisHost& self, const std::string& host) {
  if (is_ip_number(host)) return is_own_address(self, host);
  return host == "localhost" || !internal::hosts_differ(host, self.name);
}

/// The hosts that hold for `is_this`, by number.
template <class IsThis>
std::vector<std::size_t> find_all(const std::vector<HostLine>& hosts, IsThis is_this) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (is_this(hosts[i].host)) found.push_back(i);
  }
  return found;
}

[[noreturn]] void refuse(const std::string& what, const ThisHost& self) {
  std::vector<std::string> shown;
  for (const std::string& address : self.addresses) {
    if (!internal::is_loopback(address)) shown.push_back(address);
  }
  throw UsageError(
      "LS-HOST-INDEX",
      fmt::format("{}, {} ({})", what, internal::in_quotes(self.name),
                  shown.empty() ? "it has loopback addresses only" : fmt::format("{}", fmt::join(shown, ", "))),
      "correct the hosts file, or say by --host-index I which of its hosts this one is, from 0");
}

}  // namespace

HostShare share_of(const std::vector<HostLine>& hosts, std::size_t host, int workers_of_each) {
  HostShare share{.host = static_cast<int>(host), .num_hosts = static_cast<int>(hosts.size())};
  int64_t all = 0;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const int workers = hosts[i].slots != 0 ? hosts[i].slots : workers_of_each;
    if (workers == 0) {
      throw UsageError("LS-FLAG", fmt::format("line {} of the hosts file has no slots", hosts[i].line),
                       "add -n N for the hosts without slots, or give the line slots");
    }
    if (i == host) share.first_worker = static_cast<int>(all);
    if (i == host) share.workers = workers;
    all += workers;
  }
  if (all > internal::kMostTasks) {
    throw UsageError("LS-HOSTS", fmt::format("the hosts file asks for {} workers", all),
                     fmt::format("ask for at most {}", internal::kMostTasks));
  }
  share.num_workers = static_cast<int>(all);
  return share;
}

std::string job_id_of(const std::vector<HostLine>& hosts, uint16_t port) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  const auto add = [&](const std::string& text) {
    for (const char c : text + "\n") hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  };
  for (const HostLine& host : hosts) add(host.host);
  add(fmt::to_string(port));
  return fmt::format("hosts-{:016x}", hash);
}

std::size_t index_of(const ThisHost& self, const std::vector<HostLine>& hosts, const LookUp& look_up) {
  std::vector<std::size_t> found = find_all(hosts, [&](const std::string& host) { return names(self, host); });
  std::vector<std::string> unknown;
  if (found.empty()) {
    found = find_all(hosts, [&](const std::string& host) {
      if (is_ip_number(host)) return false;
      try {
        const std::vector<std::string> numbers = look_up(host);
        return std::any_of(numbers.begin(), numbers.end(), [&](const std::string& number) {
          return !internal::is_loopback(number) && is_own_address(self, number);
        });
      } catch (const ClusterError&) {
        unknown.push_back(host);
        return false;
      }
    });
  }
  if (found.size() == 1) return found.front();
  if (found.empty()) {
    const std::string not_found =
        unknown.empty() ? "" : fmt::format(" (not found by a look-up: {})", fmt::join(unknown, ", "));
    refuse(fmt::format("none of the {} hosts{} is this host", hosts.size(), not_found), self);
  }
  std::vector<std::string> several;
  for (const std::size_t i : found) several.push_back(fmt::format("{} ({})", i, hosts[i].host));
  refuse(fmt::format("the hosts {} all are this host", fmt::join(several, ", ")), self);
}

}  // namespace lockstep::tools
