// A job of two workers that a test attacks at its ports.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/comm/network/join/network_rendezvous.h"
#include "lockstep/core/process/file_descriptor.h"
#include "tests/support/worker_processes.h"

namespace lockstep::testing {

inline constexpr char kSecret[] = "a secret of the test";

inline internal::NetworkJob hostile_job(int64_t worker, uint16_t port) {
  return {.num_workers = 2,
          .worker_index = worker,
          .chief = {"127.0.0.1"},
          .chief_port = port,
          .own_address = "127.0.0.1",
          .secret = kSecret};
}

inline std::string random_bytes(std::size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

/// The beginning of a TLS record of a handshake.
inline const std::string kTlsRecord("\x16\x03\x01", 3);

/// Workers that call until the test says stop (the body calls_until_stop), once worker 1 has come.
class HostileTest : public ::testing::Test {
 protected:
  HostileTest() : workers_("calls_until_stop", 2) {
    port_ = static_cast<uint16_t>(std::stoi(workers_.expect(0, "port ").text.substr(5)));
  }
  /// Until both are in the run.
  void let_worker_1_come() {
    workers_.tell(1, std::to_string(port_));
    workers_.expect_all("joined");
  }
  /// Of the worker's own listener, and at which it gets datagrams. Only in a run.
  uint16_t port_of(int64_t worker) { return number_in(worker, "listens at "); }
  uint16_t datagram_port_of(int64_t worker) { return number_in(worker, "datagrams at "); }
  /// All has gone well on both.
  void expect_no_effect() {
    workers_.tell_all("stop");
    for (int64_t w = 0; w < 2; ++w) {
      workers_.expect(w, "made ");
      EXPECT_EQ(workers_.wait(w).code, 0) << workers_.output(w);
    }
  }
  /// How many lines of the worker's log have these words.
  int64_t lines_with(const std::string& words, int64_t worker = 0) const {
    int64_t count = 0;
    for (const Report& one : workers_.reports(worker)) count += one.text.find(words) != std::string::npos ? 1 : 0;
    return count;
  }
  /// Bytes of the worker in memory, without those of programs and libraries.
  int64_t memory(int64_t worker = 0) const {
    std::ifstream file(fmt::format("/proc/{}/status", workers_.pid(worker)));
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) << 10;
    }
    throw std::runtime_error("a worker has no RssAnon in /proc");
  }
  void expect_little_more_than(int64_t before, int64_t worker = 0) const {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    static_cast<void>(before);  // a sanitizer keeps freed memory for a while
    static_cast<void>(worker);
#else
    EXPECT_LE(memory(worker) - before, 1 << 20);
#endif
  }

  static sockaddr_in here(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  internal::FileDescriptor connected() const { return connected_to(port_); }
  static internal::FileDescriptor connected_to(uint16_t port) {
    internal::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = here(port);
    if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) socket.close();
    return socket;
  }
  static void say(const internal::FileDescriptor& socket, const std::string& bytes) {
    // The other side may have closed it: that is its answer.
    [[maybe_unused]] const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  /// Whether the other side closes the connection within `bound`. What it says before is ignored.
  static bool is_closed(const internal::FileDescriptor& socket,
                        std::chrono::milliseconds bound = std::chrono::seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + bound;
    while (std::chrono::steady_clock::now() < end) {
      pollfd file{.fd = socket.get(), .events = POLLIN, .revents = 0};
      if (poll(&file, 1, 100) <= 0) continue;
      char bytes[4096];
      if (recv(socket.get(), bytes, sizeof(bytes), 0) <= 0) return true;
    }
    return false;
  }
  /// Connections of strangers to a port, 20 of each of six kinds: each is closed.
  static void attack(uint16_t port) {
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
      std::vector<internal::FileDescriptor> sockets;
      for (uint64_t seed = 0; seed < 20; ++seed) {
        sockets.push_back(connected_to(port));
        ASSERT_TRUE(sockets.back().is_open());
        say(sockets.back(), bytes(seed));
      }
      for (const internal::FileDescriptor& socket : sockets) EXPECT_TRUE(is_closed(socket)) << name;
    }
  }

  WorkerProcesses workers_;
  uint16_t port_ = 0;

 private:
  uint16_t number_in(int64_t worker, const std::string& beginning) {
    return static_cast<uint16_t>(std::stoi(workers_.expect(worker, beginning).text.substr(beginning.size())));
  }
};

}  // namespace lockstep::testing
