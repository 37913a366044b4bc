// One connection to another worker while it is made, and then for control: frames over TLS.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "lockstep/comm/network/wire/asio.h"
#include "lockstep/comm/network/wire/frame.h"
#include "lockstep/comm/network/wire/stream.h"
#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::internal::inline comm {

/// Why a connection is of no more use.
class ConnectionError : public std::runtime_error {
 public:
  enum class Kind : uint8_t {
    kNoAnswer,     // not in time, or there is no way there
    kRefused,      // nobody listens there
    kNotTls,       // the first bytes are of no TLS
    kWrongSecret,  // the handshake failed
    kMalformed,    // what came after it is no frame, or not one of those that are expected
    kClosed,       // the other side has closed it, or its process has ended
    kBroken,       // it was closed here, or broke on the way
  };
  ConnectionError(Kind why, const std::string& what) : std::runtime_error(what), kind(why) {}

  const Kind kind;
};

/// Programs that this one starts do not get the file: otherwise a connection would outlive its worker.
void close_on_exec(int file);

/// A connection that belongs to one io_context, whose thread alone uses it. Coroutines that use it share it.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Milliseconds = std::chrono::milliseconds;
  template <class T>
  using Awaitable = asio::awaitable<T>;

  /// A socket that is connected.
  Connection(asio::ip::tcp::socket socket, const TlsContext& keys, Stream::Role role);

  /// Connects to a number and makes the handshake, all in `longest`. A ConnectionError otherwise.
  static Awaitable<std::shared_ptr<Connection>> to(std::string address, uint16_t port, const TlsContext& keys,
                                                   Milliseconds longest);

  /// Each throws a ConnectionError. They have no time limit of their own; close_after() sets one.
  Awaitable<void> handshake();
  Awaitable<Frame> read();
  /// Until all has been written that was sent.
  Awaitable<void> flush();

  /// Writes the frame at once, or when there is room for it. On a connection that is over it does nothing; read()
  /// throws the reason. Where the other side has read nothing for a MiB of frames, the connection is closed.
  void send(const Frame& frame);

  /// Closes the connection after so long, unless called again: what waits then throws kNoAnswer.
  void close_after(Milliseconds longest);
  void cancel_close();
  void close();
  bool is_open() const { return socket_.is_open(); }

  /// The other side, as "10.0.3.9:4711".
  const std::string& remote() const { return remote_; }
  /// Its number alone.
  const std::string& remote_address() const { return remote_address_; }

  /// The socket and its TLS, without asio: for data, which another thread moves. Nothing may wait.
  std::pair<FileDescriptor, Stream> release();
  /// The same for what goes on on this context. Nothing may wait.
  std::pair<asio::ip::tcp::socket, Stream> take();

 private:
  /// Waits until the stream can go on; throws where `transfer` says that it never can.
  Awaitable<void> ready_for(Transfer transfer);
  /// Writes what fits of what is unsent.
  Transfer push();
  /// Closes it and throws.
  [[noreturn]] void fail(ConnectionError::Kind kind, const std::string& what);
  /// Throws where it has been closed here: its file's number may belong to another file by now.
  void require_open();

  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  Stream stream_;
  FrameReader frames_;
  std::string unsent_;
  bool is_flushing_ = false;
  std::string remote_;
  std::string remote_address_;
  bool is_late_ = false;
};

}  // namespace lockstep::internal::comm
