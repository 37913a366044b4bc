#include "lockstep/comm/network/wire/connection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/comm/join/socket_address.h"
#include "lockstep/comm/network/wire/endpoint.h"

namespace lockstep::internal::inline comm {

namespace {

using Kind = ConnectionError::Kind;
using asio::use_awaitable;
using asio::ip::tcp;

std::string text_of(const tcp::endpoint& endpoint) {
  const std::string number = number_of(*endpoint.data());
  return fmt::format(fmt::runtime(endpoint.address().is_v6() ? "[{}]:{}" : "{}:{}"), number, endpoint.port());
}

}  // namespace

void close_on_exec(int file) { fcntl(file, F_SETFD, FD_CLOEXEC); }

Connection::Connection(tcp::socket socket, const TlsContext& keys, Stream::Role role)
    : socket_(std::move(socket)), timer_(socket_.get_executor()), stream_(socket_.native_handle(), keys, role) {
  std::error_code ignored;
  socket_.native_non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);
  const tcp::endpoint remote = socket_.remote_endpoint(ignored);
  remote_ = ignored ? "an unknown address" : text_of(remote);
  remote_address_ = ignored ? remote_ : number_of(*remote.data());
}

Connection::Awaitable<std::shared_ptr<Connection>> Connection::to(std::string address, uint16_t port,
                                                                  const TlsContext& keys, Milliseconds longest) {
  const auto executor = co_await asio::this_coro::executor;
  const std::optional<tcp::endpoint> endpoint = endpoint_of<tcp>(address, port);
  if (!endpoint) throw ConnectionError(Kind::kNoAnswer, fmt::format("'{}' is no address", address));
  tcp::socket socket(executor);
  std::error_code error;
  socket.open(endpoint->protocol(), error);
  if (error) throw ConnectionError(Kind::kNoAnswer, error.message());
  close_on_exec(socket.native_handle());
  asio::steady_timer timer(executor, longest);
  bool is_late = false;
  timer.async_wait([&](std::error_code cancelled) {
    if (cancelled) return;
    is_late = true;
    std::error_code ignored;
    socket.close(ignored);
  });
  co_await socket.async_connect(*endpoint, asio::redirect_error(use_awaitable, error));
  const bool is_in_time = timer.cancel() > 0;
  // The timer's function refers to this frame: where it could not be cancelled it has run, or runs next.
  if (!is_in_time && !is_late) co_await asio::post(executor, use_awaitable);
  if (is_late) throw ConnectionError(Kind::kNoAnswer, "no answer");
  if (error) {
    throw ConnectionError(error == asio::error::connection_refused ? Kind::kRefused : Kind::kNoAnswer, error.message());
  }
  const auto connection = std::make_shared<Connection>(std::move(socket), keys, Stream::Role::kClient);
  connection->close_after(longest);
  co_await connection->handshake();
  connection->cancel_close();
  co_return connection;
}

void Connection::fail(Kind kind, const std::string& what) {
  close();
  throw ConnectionError(kind, what);
}

void Connection::require_open() {
  if (socket_.is_open()) return;
  if (is_late_) fail(Kind::kNoAnswer, "no answer");
  fail(Kind::kBroken, "it was closed here");
}

Connection::Awaitable<void> Connection::ready_for(Transfer transfer) {
  require_open();
  switch (transfer.state) {
    case Transfer::State::kDone: co_return;
    case Transfer::State::kClosed: fail(Kind::kClosed, "the other side closed the connection");
    case Transfer::State::kFailed:
      fail(transfer.error == EPROTO ? Kind::kMalformed : Kind::kBroken, std::strerror(transfer.error));
    case Transfer::State::kWantsRead:
    case Transfer::State::kWantsWrite: break;
  }
  const auto what = transfer.state == Transfer::State::kWantsRead ? tcp::socket::wait_read : tcp::socket::wait_write;
  std::error_code error;
  co_await socket_.async_wait(what, asio::redirect_error(use_awaitable, error));
  require_open();
  if (error) fail(Kind::kBroken, error.message());
}

Connection::Awaitable<void> Connection::handshake() {
  const auto self = shared_from_this();
  while (true) {
    require_open();
    const Transfer transfer = stream_.handshake();
    if (transfer.state == Transfer::State::kDone) co_return;
    if (transfer.state == Transfer::State::kFailed && transfer.error == EPROTO) {
      fail(Kind::kWrongSecret, "it does not know this job's secret");
    }
    co_await ready_for(transfer);
  }
}

Connection::Awaitable<Frame> Connection::read() {
  const auto self = shared_from_this();
  while (true) {
    std::optional<Frame> frame = frames_.next();
    if (frame) co_return std::move(*frame);
    if (frames_.is_malformed()) fail(Kind::kMalformed, "what came is no frame");
    require_open();
    std::array<std::byte, 4096> bytes;
    const Transfer transfer = stream_.read(bytes);
    if (transfer.state == Transfer::State::kDone) {
      frames_.add({reinterpret_cast<const char*>(bytes.data()), transfer.bytes});
    } else {
      co_await ready_for(transfer);
    }
  }
}

Transfer Connection::push() {
  Transfer transfer;
  std::size_t sent = 0;
  while (sent < unsent_.size() && transfer.state == Transfer::State::kDone) {
    transfer = stream_.write(std::as_bytes(std::span(unsent_)).subspan(sent));
    sent += transfer.bytes;
  }
  unsent_.erase(0, sent);
  return transfer;
}

Connection::Awaitable<void> Connection::flush() {
  const auto self = shared_from_this();
  while (!unsent_.empty()) {
    require_open();
    const Transfer transfer = push();
    co_await ready_for(transfer);
  }
}

void Connection::send(const Frame& frame) {
  if (!socket_.is_open()) return;
  if (unsent_.size() > kLongestFrame) return close();
  unsent_ += encode(frame);
  if (is_flushing_) return;
  push();
  if (unsent_.empty()) return;
  is_flushing_ = true;
  const auto flush_all = [](std::shared_ptr<Connection> self) -> Awaitable<void> {
    Transfer transfer{.state = Transfer::State::kWantsWrite};
    try {
      while (!self->unsent_.empty() &&
             (transfer.state == Transfer::State::kWantsWrite || transfer.state == Transfer::State::kWantsRead)) {
        co_await self->ready_for(transfer);
        transfer = self->push();
      }
    } catch (const ConnectionError&) {
    }
    // What cannot be written is dropped. The other side's last words may still be there to be read, and say why.
    self->unsent_.clear();
    self->is_flushing_ = false;
  };
  asio::co_spawn(socket_.get_executor(), flush_all(shared_from_this()), rethrow);
}

void Connection::close_after(Milliseconds longest) {
  timer_.expires_after(longest);
  timer_.async_wait([self = shared_from_this()](std::error_code error) {
    if (error) return;
    self->is_late_ = true;
    self->close();
  });
}

void Connection::cancel_close() { timer_.cancel(); }

void Connection::close() {
  std::error_code ignored;
  timer_.cancel();
  // A process that this one has forked may hold the socket as well: the connection ends here all the same.
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

std::pair<FileDescriptor, Stream> Connection::release() {
  cancel_close();
  return {FileDescriptor(socket_.release()), std::move(stream_)};
}

std::pair<tcp::socket, Stream> Connection::take() {
  cancel_close();
  return {std::move(socket_), std::move(stream_)};
}

}  // namespace lockstep::internal::comm
