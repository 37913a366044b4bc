// Who has a port of this host.
#include "lockstep/comm/port_holder.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "lockstep/core/file_descriptor.h"
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
  EXPECT_EQ(sockets_at(kTable, 8080), (std::vector<PortSocket>{{42, 1001, true}, {41, 1000, false}}));
  EXPECT_EQ(sockets_at(kTable, 80), (std::vector<PortSocket>{{0, 0, false}}));
  EXPECT_TRUE(sockets_at(kTable, 50000).empty());  // another one's port at the other end
  EXPECT_TRUE(sockets_at("", 80).empty());
}

class PortHolderFiles : public lockstep::testing::ScratchFolder {};

TEST_F(PortHolderFiles, NameTheProcessOrTheUserOrSayThatNobodyHasIt) {
  const fs::path root = folder_;
  write("net/tcp", kTable);
  fs::create_directories(root / "77" / "fd");
  EXPECT_EQ(port_holder(8080, root), "a process of user 1001");
  EXPECT_EQ(port_holder(80, root), "a connection that is being closed");
  EXPECT_EQ(port_holder(81, root), "");
  fs::create_symlink("socket:[42]", root / "77" / "fd" / "3");
  EXPECT_EQ(port_holder(8080, root), "process 77");
  write("77/comm", "nginx\n");
  EXPECT_EQ(port_holder(8080, root), "process 77 (nginx)");
  EXPECT_EQ(port_holder(8080, root / "nowhere"), "");
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
    EXPECT_EQ(port_holder(port).find("process " + std::to_string(getpid())), 0U) << port_holder(port);
  }
}

}  // namespace
}  // namespace lockstep::internal
