// Who has a TCP port of an address of this host, as far as this process may see.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::internal::inline comm {

/// An IPv6 address; an IPv4 address as "::ffff:a.b.c.d".
using AddressBytes = std::array<uint8_t, 16>;

/// A socket that has a port, from /proc/net/tcp.
struct PortSocket {
  AddressBytes address = {};
  uint64_t inode = 0;
  uint32_t user = 0;
  bool listens = false;

  bool operator==(const PortSocket&) const = default;
};

/// The sockets in a text of the form of /proc/net/tcp or tcp6 whose own port this is; those that listen come first.
/// Lines that it does not understand are left out.
std::vector<PortSocket> sockets_at(std::string_view table, uint16_t port);

/// Whether a socket at `theirs` keeps others from listening at the address that `own` is, with the same port: both are
/// one address, or one of them stands for all addresses. So is it where `own` is no address in numbers.
bool keeps_from(const AddressBytes& theirs, std::string_view own);

/// "process 77 (nginx)" that keeps others from this address and port; "a process of user 1000" where this process may
/// not look into it; "a connection that is being closed" where the system alone has it; empty where nothing is found.
/// `proc` is /proc.
std::string port_holder(std::string_view address, uint16_t port, const std::filesystem::path& proc = "/proc");

}  // namespace lockstep::internal::comm
