#include "lockstep/comm/join/reserved_port.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <optional>

namespace lockstep::internal {
namespace {

constexpr int kLocalPortRange = 51;  // IP_LOCAL_PORT_RANGE of Linux 6.3, which Debian's headers do not have

FileDescriptor tcp_socket() { return FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

int bind_to(const FileDescriptor& socket, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
}

TEST(ReservedPort, IsGivenToNobodyWhoAsksForAnyPort) {
  const auto any_port_of_one = [](uint16_t port) {
    const FileDescriptor socket = tcp_socket();
    const uint32_t range = static_cast<uint32_t>(port) << 16 | port;
    if (setsockopt(socket.get(), IPPROTO_IP, kLocalPortRange, &range, sizeof range) != 0) return ENOPROTOOPT;
    const int yes = 1;
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    return bind_to(socket, 0) == 0 ? 0 : errno;
  };
  bool is_given = false;  // once it is not reserved any more; another program may be faster
  for (int attempt = 0; attempt < 20 && !is_given; ++attempt) {
    std::optional<ReservedPort> reserved(std::in_place);
    const uint16_t port = reserved->number();
    const int while_reserved = any_port_of_one(port);
    if (while_reserved == ENOPROTOOPT) GTEST_SKIP() << "this kernel has no IP_LOCAL_PORT_RANGE (Linux 6.3)";
    EXPECT_EQ(while_reserved, EADDRINUSE);
    reserved.reset();
    is_given = any_port_of_one(port) == 0;
  }
  EXPECT_TRUE(is_given);
}

TEST(ReservedPort, IsGivenToWhoeverListensThereByNumber) {
  const ReservedPort reserved;
  const FileDescriptor socket = tcp_socket();
  const int yes = 1;
  ASSERT_EQ(setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
  EXPECT_EQ(bind_to(socket, reserved.number()), 0);
  EXPECT_EQ(::listen(socket.get(), 1), 0);
}

}  // namespace
}  // namespace lockstep::internal
