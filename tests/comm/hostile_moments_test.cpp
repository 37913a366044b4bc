// Strangers at other moments and at other ports of a job, and those who know its secret and claim too much.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/network/join/members.h"
#include "lockstep/comm/network/wire/connection.h"
#include "tests/comm/hostile_connections.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::HostileTest;
using lockstep::testing::kSecret;
using lockstep::testing::random_bytes;
using std::chrono::seconds;

TEST_F(HostileTest, StrangersAreRefusedWhileWorkersJoin) {
  const int64_t before = memory();
  attack(port_);
  expect_little_more_than(before);
  let_worker_1_come();
  expect_no_effect();
  EXPECT_EQ(lines_with("speaks no TLS"), 1);
  EXPECT_EQ(lines_with("does not know this job's secret"), 1);
  EXPECT_EQ(lines_with("refused 120 connections in all"), 1);
}

TEST_F(HostileTest, StrangersAreRefusedAtWorker1AsWell) {
  let_worker_1_come();
  const int64_t before = memory(1);
  attack(port_of(1));
  expect_little_more_than(before, 1);
  expect_no_effect();
  EXPECT_EQ(lines_with("worker 1 refused a connection from 127.0.0.1, which speaks no TLS", 1), 1);
  EXPECT_EQ(lines_with("which does not know this job's secret", 1), 1);
  EXPECT_EQ(lines_with("refused 120 connections in all", 1), 1);
}

TEST_F(HostileTest, DatagramsOfStrangersHaveNoEffect) {
  let_worker_1_come();
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  for (const int64_t worker : {0, 1}) {
    const int64_t before = memory(worker);
    const sockaddr_in address = here(datagram_port_of(worker));
    for (uint64_t seed = 0; seed < 2000; ++seed) {
      constexpr std::array<std::size_t, 6> kSizes = {0, 1, 77, 200, 4200, 65'000};
      const std::string bytes = random_bytes(kSizes[seed % kSizes.size()], seed);
      sendto(socket.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    }
    expect_little_more_than(before, worker);
  }
  expect_no_effect();
}

TEST_F(HostileTest, DatagramsOfAWorkerThatAreSentAgainDoNotMakeItSeemAlive) {
  const FileDescriptor sniffer(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_UDP));
  if (!sniffer.is_open()) GTEST_SKIP() << "this process may not see the datagrams of others: " << std::strerror(errno);
  let_worker_1_come();
  const sockaddr_in address = here(datagram_port_of(0));
  std::vector<std::string> seen;
  while (seen.size() < 8) {
    std::array<char, 8192> packet;
    pollfd file{.fd = sniffer.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&file, 1, 10'000), 1) << "worker 1 sends no heartbeats";
    const ssize_t size = recv(sniffer.get(), packet.data(), packet.size(), 0);
    ASSERT_GT(size, 0);
    ip head{};
    std::memcpy(&head, packet.data(), sizeof(head));
    const std::size_t begin = head.ip_hl * std::size_t{4};
    udphdr udp{};
    std::memcpy(&udp, packet.data() + begin, sizeof(udp));
    if (udp.uh_dport != address.sin_port) continue;
    seen.emplace_back(packet.data() + begin + sizeof(udp), static_cast<std::size_t>(size) - begin - sizeof(udp));
  }
  workers_.signal(1, SIGSTOP);
  std::atomic<bool> is_over = false;
  std::thread replay([&] {
    const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    while (!is_over) {
      for (const std::string& bytes : seen) {
        sendto(socket.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&address),
               sizeof(address));
      }
      poll(nullptr, 0, 20);
    }
  });
  std::string failed;
  try {
    failed = workers_.expect(0, "failed: ").text;
  } catch (const lockstep::testing::WorkerProcessesError& error) {
    failed = error.what();
  }
  is_over = true;
  replay.join();
  EXPECT_NE(failed.find("worker 1 (process"), std::string::npos) << failed;
  EXPECT_NE(failed.find("is frozen or cut off"), std::string::npos) << failed;
}

/// Says bytes that are no frame on connections whose handshake is over.
class HostileInsiders : public HostileTest {
 protected:
  /// The connection, after what was said on it.
  static FileDescriptor say_as_insider(uint16_t port, const std::string& bytes) {
    asio::io_context context;
    const TlsContext keys(kSecret, "");
    FileDescriptor socket;
    const auto say_it = [&]() -> asio::awaitable<void> {
      const auto connection = co_await Connection::to("127.0.0.1", port, keys, seconds(10));
      auto [file, stream] = connection->release();
      const Transfer transfer = stream.write(std::as_bytes(std::span(bytes)));
      EXPECT_EQ(transfer.bytes, bytes.size());
      socket = std::move(file);
    };
    asio::co_spawn(context, say_it(), rethrow);
    context.run();
    return socket;
  }
  static std::string length(uint32_t bytes) { return {reinterpret_cast<const char*>(&bytes), sizeof(bytes)}; }
};

TEST_F(HostileInsiders, WhoClaimTooLongAFrameAreRefusedBeforeThereIsMemoryForIt) {
  let_worker_1_come();
  for (const int64_t worker : {0, 1}) {
    const uint16_t port = port_of(worker);
    const int64_t before = memory(worker);
    for (const uint32_t claimed : {UINT32_MAX, uint32_t{1} << 31, static_cast<uint32_t>(kLongestFrame) + 1, 24U, 0U}) {
      const FileDescriptor socket = say_as_insider(port, length(claimed) + std::string(100, '\x07'));
      EXPECT_TRUE(is_closed(socket, seconds(4))) << claimed;  // before its time is over
    }
    expect_little_more_than(before, worker);
  }
  expect_no_effect();
  for (const int64_t worker : {0, 1}) EXPECT_EQ(lines_with("sent what no worker sends", worker), 1);
}

TEST_F(HostileInsiders, WhoDoNotSendTheFrameThatTheyClaimAreGivenUp) {
  let_worker_1_come();
  const int64_t before = memory();
  std::vector<FileDescriptor> sockets;
  for (int i = 0; i < 10; ++i) {
    sockets.push_back(say_as_insider(port_, length(static_cast<uint32_t>(kLongestFrame)) + '\x07'));
  }
  expect_little_more_than(before);
  for (const FileDescriptor& socket : sockets) EXPECT_TRUE(is_closed(socket));
  expect_no_effect();
  EXPECT_EQ(lines_with("said nothing in time"), 1);
}

TEST_F(HostileInsiders, WhoBeginWithAnotherFrameAreRefused) {
  let_worker_1_come();
  for (const Frame& frame :
       {Frame{.kind = Frame::Kind::kEnd, .calls = {.taken = 3}, .text = "the run has ended"},
        Frame{.kind = Frame::Kind::kJoin, .text = "no joiner"},
        Frame{.kind = Frame::Kind::kAttach, .text = encode(Attachment{1, 0, Attachment::Purpose::kControl, "session"})},
        Frame{.kind = Frame::Kind::kMembers, .text = "[]"}}) {
    EXPECT_TRUE(is_closed(say_as_insider(port_, encode(frame))));
  }
  expect_no_effect();
  EXPECT_EQ(lines_with("sent what no worker sends"), 1);
}

}  // namespace
}  // namespace lockstep::internal
