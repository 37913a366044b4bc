// Who has a port of this host.
#include "lockstep/comm/join/port_holder.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/process/file_descriptor.h"
#include "tests/support/scratch_folder.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTable =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    "   0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 41 1 0 20 4 30 10 -1\n"
    "   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 42 1 0 100 0 0 10 0\n"
    "   2: 0100007F:0050 0100007F:C351 06 00000000:00000000 03:00001000 00000000     0        0 0 3 0\n"
    "   3: broken\n";

TEST(PortHolder, ReadsTheSystemsTable) {
  const AddressBytes any{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255};
  const AddressBytes loopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1};
  EXPECT_EQ(sockets_at(kTable, 8080), (std::vector<PortSocket>{{any, 42, 1001, true}, {loopback, 41, 1000, false}}));
  EXPECT_EQ(sockets_at(kTable, 80), (std::vector<PortSocket>{{loopback, 0, 0, false}}));
  const std::string ipv6 = "   0: B80D0120000000000000000001000000:0050 " + std::string(32, '0') +
                           ":0000 0A 0:0 00:0 0 7 0 43 1 0 100 0 0 10 0\n";  // 2001:db8::1
  EXPECT_EQ(sockets_at(ipv6, 80),
            (std::vector<PortSocket>{{{0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 43, 7, true}}));
  EXPECT_TRUE(sockets_at(kTable, 50000).empty());  // another one's port at the other end
  EXPECT_TRUE(sockets_at("", 80).empty());
}

TEST(PortHolder, IsWhoeverHasTheAddressOrAllOfThem) {
  const auto at = [](uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
    return AddressBytes{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, a, b, c, d};
  };
  EXPECT_TRUE(keeps_from(at(10, 0, 0, 1), "10.0.0.1"));
  EXPECT_FALSE(keeps_from(at(10, 0, 0, 1), "10.0.0.2"));
  EXPECT_FALSE(keeps_from(at(10, 0, 0, 1), "fd00::1"));
  for (const char* all : {"0.0.0.0", "::"}) EXPECT_TRUE(keeps_from(at(10, 0, 0, 1), all)) << all;
  for (const AddressBytes& all : {at(0, 0, 0, 0), AddressBytes{}}) {
    EXPECT_TRUE(keeps_from(all, "10.0.0.1"));
    EXPECT_TRUE(keeps_from(all, "fd00::1"));
  }
  AddressBytes link{0xfe, 0x80};
  link.back() = 1;
  EXPECT_TRUE(keeps_from(link, "fe80::1%eth0"));
  EXPECT_FALSE(keeps_from(link, "fe80::2%eth0"));
  EXPECT_TRUE(keeps_from(link, "a name"));
}

class PortHolderFiles : public lockstep::testing::ScratchFolder {};

TEST_F(PortHolderFiles, NameTheProcessOrTheUserOrSayThatNobodyHasIt) {
  const fs::path root = folder_;
  write("net/tcp", kTable);
  fs::create_directories(root / "77" / "fd");
  constexpr const char* kLocal = "127.0.0.1";
  EXPECT_EQ(port_holder(kLocal, 8080, root), "a process of user 1001");
  EXPECT_EQ(port_holder(kLocal, 80, root), "a connection that is being closed");
  EXPECT_EQ(port_holder("127.0.0.2", 80, root), "");  // another address has it
  EXPECT_EQ(port_holder(kLocal, 81, root), "");
  fs::create_symlink("socket:[42]", root / "77" / "fd" / "3");
  EXPECT_EQ(port_holder(kLocal, 8080, root), "process 77");
  write("77/comm", "nginx\n");
  EXPECT_EQ(port_holder(kLocal, 8080, root), "process 77 (nginx)");
  EXPECT_EQ(port_holder(kLocal, 8080, root / "nowhere"), "");
}

TEST(PortHolder, FindsThisProcess) {
  for (const int family : {AF_INET, AF_INET6}) {
    const FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket.get(), generic, size) != 0 || ::listen(socket.get(), 1) != 0) {
      ASSERT_NE(family, AF_INET);
      GTEST_SKIP() << "this system has no IPv6";
    }
    ASSERT_EQ(::getsockname(socket.get(), generic, &size), 0);
    const uint16_t port = ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
    const std::string holder = port_holder("127.0.0.1", port);  // the socket has all addresses
    EXPECT_EQ(holder.find("process " + std::to_string(getpid())), 0U) << holder;
  }
}

}  // namespace
}  // namespace lockstep::internal
