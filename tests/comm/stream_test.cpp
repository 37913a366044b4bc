// TLS streams: what goes over them comes out unchanged, however the socket cuts it, or is found to be changed.
#include "lockstep/comm/network/wire/stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::internal {
namespace {

using State = Transfer::State;

/// Two ends of a local connection that do not block.
struct Ends {
  explicit Ends(int buffer = 0) {
    std::array<int, 2> sockets{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets.data()), 0);
    one = FileDescriptor(sockets[0]);
    other = FileDescriptor(sockets[1]);
    for (const int socket : sockets) {
      if (buffer > 0) setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    }
  }
  FileDescriptor one{-1};
  FileDescriptor other{-1};
};

/// Bytes in which each place differs from its neighbours.
std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

/// A client and a server. What one of them sends goes through pass_on(), which may change it.
class Connected {
 public:
  explicit Connected(int buffer = 0) : client_ends_(buffer), server_ends_(buffer) {
    bool client_is_ready = false;
    bool server_is_ready = false;
    for (int i = 0; i < 100 && !(client_is_ready && server_is_ready); ++i) {
      client_is_ready = client_is_ready || client.handshake().state == State::kDone;
      pass_on();
      server_is_ready = server_is_ready || server.handshake().state == State::kDone;
      pass_on();
    }
    EXPECT_TRUE(client_is_ready && server_is_ready);
  }

  /// Moves what is on its way, in both directions.
  void pass_on(const std::function<void(std::vector<std::byte>&)>& change = {}) {
    pass_on(client_ends_.other.get(), server_ends_.other.get(), change);
    pass_on(server_ends_.other.get(), client_ends_.other.get(), change);
  }

 private:
  static void pass_on(int from, int to, const std::function<void(std::vector<std::byte>&)>& change) {
    std::vector<std::byte> bytes(1 << 20);
    const ssize_t got = recv(from, bytes.data(), bytes.size(), 0);
    if (got <= 0) return;
    bytes.resize(static_cast<std::size_t>(got));
    if (change) change(bytes);
    EXPECT_EQ(send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL), got);
  }

  const TlsContext keys_{"a secret of the test", "job"};
  Ends client_ends_;
  Ends server_ends_;

 public:
  Stream client{client_ends_.one.get(), keys_, Stream::Role::kClient};
  Stream server{server_ends_.one.get(), keys_, Stream::Role::kServer};
};

TEST(TlsStream, SendsSeveralRecordsAtOnce) {
  Connected pair;
  const std::vector<std::byte> bytes = some_bytes(64 << 10);
  const Transfer sent = pair.client.write(bytes);
  EXPECT_EQ(sent.state, State::kDone);
  EXPECT_GT(sent.bytes, 3U << 14);  // a record has at most 1 << 14
}

TEST(TlsStream, GivesWhatWasSentWhereTheSocketTakesOnlyParts) {
  Ends ends(4608);
  const TlsContext keys("a secret of the test", "job");
  Stream client(ends.one.get(), keys, Stream::Role::kClient);
  Stream server(ends.other.get(), keys, Stream::Role::kServer);
  for (int i = 0; i < 100; ++i) {
    client.handshake();
    server.handshake();
  }
  const std::vector<std::byte> bytes = some_bytes(3'000'017);
  std::vector<std::byte> got(bytes.size());
  std::size_t sent_count = 0;
  std::size_t got_count = 0;
  int waits = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (got_count < got.size() && std::chrono::steady_clock::now() < end) {
    if (sent_count < bytes.size()) {
      const Transfer sent = client.write(std::span(bytes).subspan(sent_count));
      ASSERT_TRUE(sent.state == State::kDone || sent.state == State::kWantsWrite);
      sent_count += sent.bytes;
      waits += sent.state == State::kWantsWrite ? 1 : 0;
    }
    const Transfer read = server.read(std::span(got).subspan(got_count));
    ASSERT_TRUE(read.state == State::kDone || read.state == State::kWantsRead);
    got_count += read.bytes;
  }
  EXPECT_GT(waits, 10) << "the socket has taken all at once";
  EXPECT_EQ(sent_count, bytes.size());
  EXPECT_TRUE(got == bytes);
}

TEST(TlsStream, SaysOnBothSidesThatBytesWereChanged) {
  Connected pair;
  const std::vector<std::byte> bytes = some_bytes(40'000);
  ASSERT_EQ(pair.client.write(bytes).bytes, bytes.size());
  pair.pass_on([](std::vector<std::byte>& passed) { passed[20'000] ^= std::byte{8}; });
  std::vector<std::byte> got(bytes.size());
  Transfer read = pair.server.read(got);
  EXPECT_EQ(read.state, State::kDone);  // the first record is whole
  read = pair.server.read(got);
  ASSERT_EQ(read.state, State::kFailed);
  ASSERT_NE(read.text, nullptr);
  EXPECT_NE(std::string(read.text).find("changed on their way"), std::string::npos);
  pair.pass_on();
  read = pair.client.read(got);
  ASSERT_EQ(read.state, State::kFailed);
  ASSERT_NE(read.text, nullptr);
  EXPECT_NE(std::string(read.text).find("changed on their way"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::internal
