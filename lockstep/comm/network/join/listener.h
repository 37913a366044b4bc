// The port at which a worker can be reached. Nobody who does not know the job's secret can do anything there.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "lockstep/comm/network/wire/asio.h"
#include "lockstep/comm/network/wire/connection.h"

namespace lockstep::internal::inline comm {

/// Accepts connections, makes the handshake, and hands on those that know the secret.
///
/// Against all others it is bounded: at most kMostNewcomers connections are here that have not said their first frame,
/// each has kLongestHandshake for it, and the oldest gives way to the next one. Nothing is allocated for TLS before the
/// first bytes look like it. The log shows each kind of refusal once; after that they are counted.
class Listener {
 public:
  static constexpr std::size_t kMostNewcomers = 16;
  static constexpr std::chrono::milliseconds kLongestHandshake = std::chrono::seconds(5);

  /// Gets a connection whose handshake is over, and its first frame.
  using Welcome = std::function<void(std::shared_ptr<Connection>, Frame)>;

  /// Listens at a number of this host; port 0 is any that is free. `who` stands in the log ("worker 0"). A ClusterError
  /// (LS-CLUSTER-SOCKET) where the system refuses. `keys` outlives the listener; all members belong to the thread of
  /// `context`.
  Listener(asio::io_context& context, const std::string& address, uint16_t port, const TlsContext& keys,
           std::string who);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// Begins to accept.
  void start(Welcome welcome);
  uint16_t port() const { return port_; }
  /// Closes a connection that was handed on and sent what no worker sends, and counts it.
  void refuse(Connection& connection);
  /// How many connections have been refused, of all kinds.
  int64_t refused() const;

 private:
  struct Newcomer {
    asio::ip::tcp::socket socket;                 // until TLS begins
    std::shared_ptr<Connection> connection = {};  // after that
    bool is_too_slow = false;                     // and was closed here
    void give_up();
  };
  using Place = std::list<Newcomer>::iterator;

  asio::awaitable<void> accept();
  asio::awaitable<void> greet(Place place);
  void count(ConnectionError::Kind kind, const std::string& remote);

  asio::io_context& context_;
  const TlsContext& tls_;
  const std::string who_;
  asio::ip::tcp::acceptor acceptor_;
  uint16_t port_ = 0;
  Welcome welcome_;
  std::list<Newcomer> newcomers_;        // the oldest first
  std::array<int64_t, 7> refused_ = {};  // by ConnectionError::Kind
};

}  // namespace lockstep::internal::comm
