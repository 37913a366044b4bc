// Strangers at the port of a job that runs: nothing that they do has an effect on it.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/join/this_host.h"
#include "lockstep/comm/network/network_world.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "tests/comm/hostile_connections.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::hostile_job;
using lockstep::testing::HostileTest;
using lockstep::testing::kSecret;
using lockstep::testing::kTlsRecord;
using lockstep::testing::my_worker_index;
using lockstep::testing::next_word;
using lockstep::testing::random_bytes;
using lockstep::testing::report;
using lockstep::testing::wait_for;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Calls until the test says stop, and reports what its log says.
WORKER_BODY(calls_until_stop) {
  set_log_sink([](LogLevel, std::string_view line) { report(fmt::format("log: {}", line)); });
  const auto port = my_worker_index() == 0 ? 0 : static_cast<uint16_t>(std::stoi(next_word()));
  auto network = std::make_unique<NetworkRendezvous>(hostile_job(my_worker_index(), port));
  if (my_worker_index() == 0) report(fmt::format("port {}", network->port()));
  const Members members = network->meet(seconds(60));
  const Member& mine = members.all[static_cast<std::size_t>(my_worker_index())];
  auto world = connect_network(std::move(network), {});
  std::atomic<bool> is_told = false;
  std::thread listener([&] {
    wait_for("stop");
    is_told = true;
  });
  report(fmt::format("listens at {}", mine.port));
  report(fmt::format("datagrams at {}", mine.datagram_port));
  report("joined");
  bool stops = false;
  uint64_t calls = 0;
  try {
    while (!stops) {
      for (const std::string& record : world->agree(is_told ? "stop" : "go on")) stops = stops || record == "stop";
      ++calls;
    }
  } catch (const PeerError& error) {
    report(fmt::format("failed: {}", error.what()));
  }
  listener.join();
  world.reset();
  if (stops) report(fmt::format("made {} calls", calls));
}

/// The job runs while the test attacks worker 0.
class HostileConnections : public HostileTest {
 protected:
  HostileConnections() { let_worker_1_come(); }
};

TEST_F(HostileConnections, AreRefusedAndShownOnceOfEachKind) {
  const int64_t before = memory();
  attack(port_);
  expect_little_more_than(before);
  expect_no_effect();
  EXPECT_EQ(lines_with("speaks no TLS"), 1);
  EXPECT_EQ(lines_with("does not know this job's secret"), 1);
  EXPECT_EQ(lines_with("refused 120 connections in all"), 1);
}

TEST_F(HostileConnections, OfAnotherSecretAreRefused) {
  asio::io_context context;
  const TlsContext keys("another secret of another job", "");
  int refused = 0;
  // It lives as long as its coroutines.
  const auto attempt = [&]() -> asio::awaitable<void> {
    try {
      const auto connection = co_await Connection::to("127.0.0.1", port_, keys, seconds(10));
      connection->send({.kind = Frame::Kind::kProbe});
      co_await connection->read();
    } catch (const ConnectionError&) {
      ++refused;
    }
  };
  for (int i = 0; i < 20; ++i) asio::co_spawn(context, attempt(), rethrow);
  context.run();
  EXPECT_EQ(refused, 20);
  expect_no_effect();
  EXPECT_EQ(lines_with("does not know this job's secret"), 1);
}

TEST_F(HostileConnections, ThatReplayARealHandshakeAreRefused) {
  // A forwarder between a real worker's connection and worker 0 keeps what the worker says.
  FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = here(0);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  socklen_t size = sizeof(address);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  std::string said;
  std::thread forwarder([&] {
    const FileDescriptor from(accept(listener.get(), nullptr, nullptr));
    const FileDescriptor to = connected();
    pollfd files[] = {{.fd = from.get(), .events = POLLIN, .revents = 0},
                      {.fd = to.get(), .events = POLLIN, .revents = 0}};
    while (poll(files, 2, 10'000) > 0) {
      char bytes[4096];
      for (const int side : {0, 1}) {
        if (files[side].revents == 0) continue;
        const ssize_t count = recv(files[side].fd, bytes, sizeof(bytes), 0);
        if (count <= 0) return;
        if (side == 0) said.append(bytes, static_cast<std::size_t>(count));
        say(side == 0 ? to : from, std::string(bytes, static_cast<std::size_t>(count)));
      }
    }
  });
  asio::io_context context;
  const TlsContext keys(kSecret, "");
  std::string answer;
  const auto real = [&]() -> asio::awaitable<void> {
    const auto connection = co_await Connection::to("127.0.0.1", ntohs(address.sin_port), keys, seconds(10));
    connection->send({.kind = Frame::Kind::kProbe});
    const Frame frame = co_await connection->read();
    answer = frame.text;
    connection->close();
  };
  asio::co_spawn(context, real(), rethrow);
  context.run();
  forwarder.join();
  EXPECT_EQ(answer, fmt::format("worker 0 (process {} on host {})", workers_.pid(0), host_name()));
  for (std::size_t cut : {said.size(), said.size() / 2, said.size() - 1, std::size_t{100}}) {
    const FileDescriptor socket = connected();
    say(socket, said.substr(0, cut));
    shutdown(socket.get(), SHUT_WR);
    EXPECT_TRUE(is_closed(socket)) << cut;
  }
  expect_no_effect();
  EXPECT_EQ(lines_with("does not know this job's secret"), 1);
  EXPECT_EQ(lines_with("refused 4 connections in all"), 1);
}

TEST_F(HostileConnections, AThousandThatAreHeldOpenLeaveRoomForOthers) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &limit);
  const int64_t before = memory();
  std::vector<FileDescriptor> held;
  for (int i = 0; i < 1000; ++i) {
    held.push_back(connected());
    ASSERT_TRUE(held.back().is_open()) << i;
    if (i % 2 == 0) say(held.back(), kTlsRecord);  // and no more
  }
  expect_little_more_than(before);
  // One that knows the secret is served all the same.
  asio::io_context context;
  const TlsContext keys(kSecret, "");
  std::string answer;
  const auto real = [&]() -> asio::awaitable<void> {
    const auto connection = co_await Connection::to("127.0.0.1", port_, keys, seconds(10));
    connection->send({.kind = Frame::Kind::kProbe});
    const Frame frame = co_await connection->read();
    answer = frame.text;
  };
  asio::co_spawn(context, real(), rethrow);
  context.run();
  EXPECT_EQ(answer.substr(0, 9), "worker 0 ");
  for (const FileDescriptor& one : held) EXPECT_TRUE(is_closed(one));
  expect_no_effect();
  EXPECT_EQ(lines_with("said nothing in time"), 1);
}

TEST_F(HostileConnections, ThatSayOneByteAtATimeAreGivenUp) {
  const std::string hello = kTlsRecord + std::string("\x02\x00\x01\x00\x01\xfc\x03\x03", 8) + random_bytes(501, 1);
  const FileDescriptor socket = connected();
  bool closed = false;
  for (std::size_t i = 0; i < hello.size() && !closed; ++i) {
    say(socket, hello.substr(i, 1));
    closed = is_closed(socket, milliseconds(100));
  }
  EXPECT_TRUE(closed);
  expect_no_effect();
  EXPECT_EQ(lines_with("said nothing in time"), 1);
}

TEST_F(HostileConnections, OfAWorkerWhoComesDuringTheRunAreToldSo) {
  const NetworkJob job = hostile_job(1, port_);
  auto network = std::make_unique<NetworkRendezvous>(job);
  try {
    network->meet(milliseconds(500));
    ADD_FAILURE() << "a second worker 1 has joined";
  } catch (const ClusterError& error) {
    EXPECT_EQ(error.code(), "LS-CLUSTER-JOIN");
    const std::string words = fmt::format("is in a run of this job, in which process {} on host {} is worker 1",
                                          workers_.pid(1), host_name());
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
  expect_no_effect();
}

}  // namespace
}  // namespace lockstep::internal
