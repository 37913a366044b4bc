// Frames as datagrams: who is heard, and who is not.
#include "lockstep/comm/network/wire/datagrams.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::internal {
namespace {

/// Two workers of a run of three, and a socket of a stranger.
class DatagramTest : public ::testing::Test {
 protected:
  DatagramTest() : stranger_(context_, asio::ip::udp::endpoint(asio::ip::make_address("127.0.0.1"), 0)) {
    for (int64_t w = 0; w < 2; ++w) {
      workers_.push_back(std::make_unique<Datagrams>(context_, "127.0.0.1"));
      members_.push_back(
          {.worker = w, .address = "127.0.0.1", .datagram_port = workers_[static_cast<std::size_t>(w)]->port()});
    }
    members_.push_back({.worker = 2, .address = "127.0.0.1", .datagram_port = 0});
  }
  void start(int64_t worker, const std::string& key) {
    workers_[static_cast<std::size_t>(worker)]->start(members_, worker, key,
                                                      [this, worker](int64_t heard, const Frame& frame) {
                                                        EXPECT_EQ(frame, frame_);
                                                        ++heard_[{worker, heard}];
                                                      });
  }
  /// Until everything that was sent has arrived: a datagram to this host is there when it has been sent.
  void settle() {
    for (int i = 0; i < 20; ++i) context_.run_for(std::chrono::milliseconds(1));
  }
  void send_as_stranger(const std::string& bytes) {
    stranger_.send_to(asio::buffer(bytes), {asio::ip::make_address("127.0.0.1"), workers_[0]->port()});
  }

  const Frame frame_{.kind = Frame::Kind::kHeartbeat, .calls = {.taken = 7, .returned = 6}};
  asio::io_context context_;
  asio::ip::udp::socket stranger_;
  std::vector<std::unique_ptr<Datagrams>> workers_;
  std::vector<Member> members_;
  std::map<std::pair<int64_t, int64_t>, int> heard_;  // by who hears and who is heard
};

TEST_F(DatagramTest, AreHeardByTheOthersOnceEach) {
  start(0, "a key");
  start(1, "a key");
  for (int i = 0; i < 3; ++i) workers_[1]->send(frame_);
  workers_[0]->send(frame_);
  settle();
  EXPECT_EQ((heard_[{0, 1}]), 3);
  EXPECT_EQ((heard_[{1, 0}]), 1);
  EXPECT_EQ(heard_.size(), 2U);
}

TEST_F(DatagramTest, OfAnotherRunAreNotHeard) {
  start(0, "a key");
  start(1, "the key of another run");
  workers_[1]->send(frame_);
  settle();
  EXPECT_TRUE(heard_.empty());
}

TEST_F(DatagramTest, ThatAreReplayedOrChangedOrOfOtherSizesAreNotHeard) {
  start(0, "a key");
  // Worker 1's go to the stranger, who keeps them.
  auto copy = members_;
  copy[0].datagram_port = stranger_.local_endpoint().port();
  workers_[1]->start(copy, 1, "a key", [](int64_t, const Frame&) {});
  workers_[1]->send(frame_);
  std::string kept(256, '\0');
  kept.resize(stranger_.receive(asio::buffer(kept)));
  EXPECT_GT(kept.size(), 64U);
  for (const std::size_t changed :
       {std::size_t{0}, std::size_t{8}, std::size_t{16}, std::size_t{40}, kept.size() - 1}) {
    std::string other = kept;
    other[changed] = static_cast<char>(other[changed] ^ 1);
    send_as_stranger(other);
  }
  send_as_stranger(kept + "x");
  send_as_stranger(kept.substr(0, kept.size() - 1));
  send_as_stranger("");
  send_as_stranger(std::string(80, '\xff'));
  settle();
  EXPECT_TRUE(heard_.empty());
  send_as_stranger(kept);
  send_as_stranger(kept);
  settle();
  EXPECT_EQ((heard_[{0, 1}]), 1);
}

}  // namespace
}  // namespace lockstep::internal
