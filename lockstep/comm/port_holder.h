// Who has a TCP port of this host, as far as this process may see.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal {

/// A socket that has a port, from /proc/net/tcp.
struct PortSocket {
  uint64_t inode = 0;
  uint32_t user = 0;
  bool listens = false;

  bool operator==(const PortSocket&) const = default;
};

/// The sockets in a text of the form of /proc/net/tcp or tcp6 whose own port this is; those that listen come first.
/// Lines that it does not understand are left out.
std::vector<PortSocket> sockets_at(std::string_view table, uint16_t port);

/// "process 77 (nginx)" that has the port on this host; "a process of user 1000" where this process may not look into
/// it; "a connection that is being closed" where the system alone has it; empty where nothing is found. `proc` is
/// /proc.
std::string port_holder(uint16_t port, const std::filesystem::path& proc = "/proc");

}  // namespace lockstep::internal
