// One connection between two tasks that send each other messages of any length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "lockstep/comm/network/wire/asio.h"
#include "lockstep/comm/network/wire/connection.h"
#include "lockstep/comm/network/wire/stream.h"

namespace lockstep::internal::inline comm {

/// Longer messages are refused by whoever is asked to send one, and by whoever is sent one.
inline constexpr uint64_t kLongestTaskMessage = uint64_t{1} << 36;

/// It belongs to one io_context, whose thread alone uses it. Coroutines that use it share it. A message is its length
/// in eight bytes, and its bytes; one without bytes only says that the sender is alive.
class TaskLink : public std::enable_shared_from_this<TaskLink> {
 public:
  /// The connection has made its handshake, and nothing is on its way. With `plaintext` both sides go on without TLS.
  TaskLink(asio::io_context& context, std::pair<asio::ip::tcp::socket, Stream> connection, bool plaintext);

  /// The next message; messages without bytes are passed over. Throws a ConnectionError. Memory for a message grows
  /// as its bytes come, and not by what its length says.
  asio::awaitable<std::string> read();
  /// Writes the message at once, or when there is room for it. On a link that is over it does nothing; read() throws
  /// the reason.
  void send(std::string message);
  /// An empty message, where nothing has been written since this was called last.
  void say_alive();
  /// Whether anything has come since this was called last.
  bool was_heard();

  /// When all that was sent is written.
  void close_when_sent();
  void close();
  bool is_open() const { return socket_.is_open(); }
  bool has_unsent() const { return !unsent_.empty(); }

 private:
  asio::awaitable<void> read_all(std::span<std::byte> place);
  asio::awaitable<void> ready_for(Transfer transfer);
  void flush();
  Transfer push();
  [[noreturn]] void fail(ConnectionError::Kind kind, const std::string& what);
  void require_open() const;

  asio::io_context& context_;
  asio::ip::tcp::socket socket_;
  Stream stream_;
  std::deque<std::string> unsent_;
  std::size_t sent_of_first_ = 0;
  bool is_flushing_ = false;
  bool closes_when_sent_ = false;
  bool has_written_ = false;
  bool was_heard_ = true;
};

}  // namespace lockstep::internal::comm
