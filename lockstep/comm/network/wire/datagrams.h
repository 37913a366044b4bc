// Heartbeats, and the end of a run, as datagrams: they arrive while TCP waits for a lost packet.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/network/join/members.h"
#include "lockstep/comm/network/wire/asio.h"
#include "lockstep/comm/network/wire/frame.h"

namespace lockstep::internal::inline comm {

/// Sends frames to the other workers and receives theirs. Each datagram has one frame, says who sends it, counts up,
/// and proves by an HMAC that its sender knows the key of this run. Others are ignored, and so is one that has been
/// seen already, or is older than one that has. Where the system or a firewall lets no datagrams through, nothing
/// comes: what goes over TCP remains. All members belong to the thread of the context.
class Datagrams {
 public:
  /// Binds a free port of this number of the host.
  Datagrams(asio::io_context& context, const std::string& address);

  /// 0 where the system gives none.
  uint16_t port() const { return port_; }

  /// Begins to receive; `heard` gets the worker and what it says. `key` is the same for all workers of the run.
  void start(const std::vector<Member>& members, int64_t self, const std::string& key,
             std::function<void(int64_t worker, const Frame& frame)> heard);
  /// To every other worker, or to these. The frame has at most kLongestReason bytes of text.
  void send(const Frame& frame);
  void send(const Frame& frame, std::span<const int64_t> workers);

 private:
  std::string datagram_of(const Frame& frame);
  void send_bytes(const std::string& datagram, const asio::ip::udp::endpoint& endpoint);
  asio::awaitable<void> receive();
  void read(std::string_view bytes);

  asio::ip::udp::socket socket_;
  uint16_t port_ = 0;
  int64_t self_ = 0;
  std::string key_;
  uint64_t sent_ = 0;
  std::vector<asio::ip::udp::endpoint> endpoints_;  // by worker; this one's, and unknown ones, are empty
  std::vector<uint64_t> last_;                      // by worker: the highest count that has come
  std::function<void(int64_t, const Frame&)> heard_;
};

}  // namespace lockstep::internal::comm
