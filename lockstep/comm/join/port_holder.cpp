#include "lockstep/comm/join/port_holder.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

namespace lockstep::internal::inline comm {

namespace {

namespace fs = std::filesystem;

constexpr uint32_t kListening = 10;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return words;
    const std::size_t end = std::min(line.find_first_of(" \t", begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
}

std::optional<uint64_t> number(std::string_view text, int base) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

constexpr AddressBytes kAnyOfIpv4{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/// Of words of the machine, each in hexadecimal, as the kernel prints them: one of IPv4, four of IPv6.
std::optional<AddressBytes> address_of(std::string_view words) {
  constexpr std::size_t kDigits = 8;
  if (words.size() != kDigits && words.size() != 4 * kDigits) return std::nullopt;
  AddressBytes bytes = kAnyOfIpv4;
  std::size_t place = words.size() == kDigits ? 12 : 0;
  for (; !words.empty(); words.remove_prefix(kDigits), place += 4) {
    const auto word = number(words.substr(0, kDigits), 16);
    if (!word) return std::nullopt;
    const auto native = static_cast<uint32_t>(*word);
    std::memcpy(&bytes[place], &native, sizeof native);
  }
  return bytes;
}

/// Of "10.0.0.1", "fd00::1" or "fe80::1%eth0".
std::optional<AddressBytes> parsed(std::string_view text) {
  const std::string number(text.substr(0, text.find('%')));
  AddressBytes bytes = kAnyOfIpv4;
  if (inet_pton(AF_INET, number.c_str(), &bytes[12]) == 1) return bytes;
  return inet_pton(AF_INET6, number.c_str(), bytes.data()) == 1 ? std::optional(bytes) : std::nullopt;
}

bool is_any(const AddressBytes& address) { return address == AddressBytes{} || address == kAnyOfIpv4; }

/// The process that has a file "socket:[INODE]", among those that this one may look into.
std::optional<std::string> process_with(const std::string& socket, const fs::path& proc) {
  std::error_code none;
  for (fs::directory_iterator process(proc, none), end; process != end; process.increment(none)) {
    const std::string id = process->path().filename();
    if (!number(id, 10)) continue;
    std::error_code refused;
    for (fs::directory_iterator file(process->path() / "fd", refused); file != end; file.increment(refused)) {
      std::error_code gone;
      if (fs::read_symlink(file->path(), gone) != socket || gone) continue;
      std::string name = text_of(process->path() / "comm");
      name.erase(std::find(name.begin(), name.end(), '\n'), name.end());
      return name.empty() ? fmt::format("process {}", id) : fmt::format("process {} ({})", id, name);
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<PortSocket> sockets_at(std::string_view table, uint16_t port) {
  std::vector<PortSocket> found;
  while (!table.empty()) {
    const std::size_t end = std::min(table.find('\n'), table.size());
    // Number, own address, other address, state, queues, timer, retransmits, user, timeout, inode.
    const std::vector<std::string_view> words = words_of(table.substr(0, end));
    table.remove_prefix(std::min(end + 1, table.size()));
    if (words.size() < 10 || words[1].find(':') == std::string_view::npos) continue;
    const std::size_t colon = words[1].rfind(':');
    const auto address = address_of(words[1].substr(0, colon));
    const auto own_port = number(words[1].substr(colon + 1), 16);
    const auto state = number(words[3], 16);
    const auto user = number(words[7], 10);
    const auto inode = number(words[9], 10);
    if (!address || !own_port || *own_port != port || !state || !user || !inode) continue;
    found.push_back({*address, *inode, static_cast<uint32_t>(*user), *state == kListening});
  }
  std::stable_partition(found.begin(), found.end(), [](const PortSocket& one) { return one.listens; });
  return found;
}

bool keeps_from(const AddressBytes& theirs, std::string_view own) {
  const std::optional<AddressBytes> address = parsed(own);
  return !address || is_any(theirs) || is_any(*address) || theirs == *address;
}

std::string port_holder(std::string_view address, uint16_t port, const std::filesystem::path& proc) {
  std::vector<PortSocket> sockets;
  for (const char* table : {"net/tcp", "net/tcp6"}) {
    const std::vector<PortSocket> some = sockets_at(text_of(proc / table), port);
    std::copy_if(some.begin(), some.end(), std::back_inserter(sockets),
                 [&](const PortSocket& one) { return keeps_from(one.address, address); });
  }
  std::stable_partition(sockets.begin(), sockets.end(), [](const PortSocket& one) { return one.listens; });
  for (const PortSocket& one : sockets) {
    if (one.inode == 0) continue;  // no process has it any more
    if (auto process = process_with(fmt::format("socket:[{}]", one.inode), proc)) return *process;
    return fmt::format("a process of user {}", one.user);
  }
  return sockets.empty() ? "" : "a connection that is being closed";
}

}  // namespace lockstep::internal::comm
