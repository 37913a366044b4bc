// Strangers at the port of a job that runs: nothing that they do has an effect on it.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/network/network_world.h"
#include "lockstep/core/error.h"
#include "lockstep/core/file_descriptor.h"
#include "lockstep/core/log.h"
#include "tests/support/worker_processes.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::my_worker_index;
using lockstep::testing::next_word;
using lockstep::testing::report;
using lockstep::testing::Report;
using lockstep::testing::wait_for;
using lockstep::testing::WorkerProcesses;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kSecret[] = "a secret of the test";

NetworkJob job_of(int64_t worker, uint16_t port) {
  return {.num_workers = 2,
          .worker_index = worker,
          .chief = {"127.0.0.1"},
          .chief_port = port,
          .own_address = "127.0.0.1",
          .secret = kSecret};
}

/// Calls until the test says stop, and reports what its log says.
WORKER_BODY(calls_until_stop) {
  set_log_sink([](LogLevel, std::string_view line) { report(fmt::format("log: {}", line)); });
  const auto port = my_worker_index() == 0 ? 0 : static_cast<uint16_t>(std::stoi(next_word()));
  const NetworkJob job = job_of(my_worker_index(), port);
  auto network = std::make_unique<NetworkRendezvous>(job);
  if (my_worker_index() == 0) report(fmt::format("port {}", network->port()));
  network->meet(seconds(60));
  auto world = connect_network(std::move(network), {});
  std::atomic<bool> is_told = false;
  std::thread listener([&] {
    wait_for("stop");
    is_told = true;
  });
  report("joined");
  bool stops = false;
  uint64_t calls = 0;
  while (!stops) {
    for (const std::string& record : world->agree(is_told ? "stop" : "go on")) stops = stops || record == "stop";
    ++calls;
  }
  listener.join();
  world.reset();
  report(fmt::format("made {} calls", calls));
}

/// A job of two workers that run while a test attacks worker 0.
class HostileConnections : public ::testing::Test {
 protected:
  HostileConnections() : workers_("calls_until_stop", 2) {
    port_ = static_cast<uint16_t>(std::stoi(workers_.expect(0, "port ").text.substr(5)));
    workers_.tell(1, std::to_string(port_));
    workers_.expect_all("joined");
  }
  /// All has gone well on both.
  void expect_no_effect() {
    workers_.tell_all("stop");
    for (int64_t w = 0; w < 2; ++w) {
      workers_.expect(w, "made ");
      EXPECT_EQ(workers_.wait(w).code, 0) << workers_.output(w);
    }
  }
  /// How many lines of worker 0's log have these words.
  int64_t lines_with(const std::string& words) const {
    int64_t count = 0;
    for (const Report& one : workers_.reports(0)) count += one.text.find(words) != std::string::npos ? 1 : 0;
    return count;
  }
  /// Bytes of worker 0 in memory, without those of programs and libraries.
  int64_t memory() const {
    std::ifstream file(fmt::format("/proc/{}/status", workers_.pid(0)));
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) << 10;
    }
    throw std::runtime_error("worker 0 has no RssAnon in /proc");
  }

  static sockaddr_in here(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  void expect_little_more_than(int64_t before) const {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    static_cast<void>(before);  // a sanitizer keeps freed memory for a while
#else
    EXPECT_LE(memory() - before, 1 << 20);
#endif
  }

  FileDescriptor connected() const { return connected_to(port_); }
  static FileDescriptor connected_to(uint16_t port) {
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = here(port);
    if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) socket.close();
    return socket;
  }
  static void say(const FileDescriptor& socket, const std::string& bytes) {
    // The other side may have closed it: that is its answer.
    [[maybe_unused]] const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  /// Whether the other side closes the connection within `bound`. What it says before is ignored.
  static bool is_closed(const FileDescriptor& socket, milliseconds bound = seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + bound;
    while (std::chrono::steady_clock::now() < end) {
      pollfd file{.fd = socket.get(), .events = POLLIN, .revents = 0};
      if (poll(&file, 1, 100) <= 0) continue;
      char bytes[4096];
      if (recv(socket.get(), bytes, sizeof(bytes), 0) <= 0) return true;
    }
    return false;
  }

  WorkerProcesses workers_;
  uint16_t port_ = 0;
};

std::string random_bytes(std::size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

/// The beginning of a TLS record of a handshake.
const std::string kTlsRecord("\x16\x03\x01", 3);

TEST_F(HostileConnections, AreRefusedAndShownOnceOfEachKind) {
  const int64_t before = memory();
  const std::map<std::string, std::function<std::string(uint64_t)>> attacks{
      {"HTTP", [](uint64_t) { return "GET / HTTP/1.1\r\nHost: a\r\n\r\n"; }},
      {"random bytes", [](uint64_t seed) { return random_bytes(4096, seed); }},
      {"zeros", [](uint64_t) { return std::string(100, '\0'); }},
      {"a number of bytes that is too large", [](uint64_t) { return std::string(64, '\xff'); }},
      {"TLS that is none",
       [](uint64_t seed) { return kTlsRecord + std::string("\x02\x00", 2) + random_bytes(512, seed); }},
      {"a TLS record of no length", [](uint64_t) { return kTlsRecord + std::string(2, '\0'); }},
  };
  for (const auto& [name, bytes] : attacks) {
    std::vector<FileDescriptor> sockets;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      sockets.push_back(connected());
      ASSERT_TRUE(sockets.back().is_open());
      say(sockets.back(), bytes(seed));
    }
    for (const FileDescriptor& socket : sockets) EXPECT_TRUE(is_closed(socket)) << name;
  }
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
  const NetworkJob job = job_of(1, port_);
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
