#include "lockstep/comm/tasks/task_link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "lockstep/core/bytes.h"

namespace lockstep::internal::inline comm {

namespace {

using asio::use_awaitable;
using asio::ip::tcp;
using Kind = ConnectionError::Kind;

/// So much memory a message has before any of its bytes has come, and other coroutines run after so many bytes.
constexpr std::size_t kPiece = std::size_t{256} << 10;
/// At most so many addresses it has beforehand, to which the system gives memory as bytes come.
constexpr std::size_t kReserved = std::size_t{64} << 20;

}  // namespace

TaskLink::TaskLink(asio::io_context& context, std::pair<tcp::socket, Stream> connection, bool plaintext)
    : context_(context), socket_(std::move(connection.first)), stream_(std::move(connection.second)) {
  if (plaintext) stream_.drop_tls();
}

void TaskLink::fail(Kind kind, const std::string& what) {
  close();
  throw ConnectionError(kind, what);
}

void TaskLink::require_open() const {
  if (!socket_.is_open()) throw ConnectionError(Kind::kBroken, "it was closed here");
}

asio::awaitable<void> TaskLink::ready_for(Transfer transfer) {
  require_open();
  switch (transfer.state) {
    case Transfer::State::kDone: co_return;
    case Transfer::State::kClosed: fail(Kind::kClosed, "the other side closed the connection");
    case Transfer::State::kFailed:
      fail(Kind::kBroken, transfer.text != nullptr ? transfer.text : std::strerror(transfer.error));
    case Transfer::State::kWantsRead:
    case Transfer::State::kWantsWrite: break;
  }
  const auto what = transfer.state == Transfer::State::kWantsRead ? tcp::socket::wait_read : tcp::socket::wait_write;
  std::error_code error;
  co_await socket_.async_wait(what, asio::redirect_error(use_awaitable, error));
  require_open();
  if (error) fail(Kind::kBroken, error.message());
}

asio::awaitable<void> TaskLink::read_all(std::span<std::byte> place) {
  std::size_t since_pause = 0;
  while (!place.empty()) {
    require_open();
    const Transfer transfer = stream_.read(place);
    if (transfer.state != Transfer::State::kDone) {
      co_await ready_for(transfer);
      continue;
    }
    was_heard_ = true;
    place = place.subspan(transfer.bytes);
    since_pause += transfer.bytes;
    if (since_pause < kPiece) continue;
    since_pause = 0;
    co_await asio::post(context_, use_awaitable);  // others have something to do, too
  }
}

asio::awaitable<std::string> TaskLink::read() {
  const auto self = shared_from_this();
  while (true) {
    std::array<std::byte, sizeof(uint64_t)> head{};
    co_await read_all(head);
    uint64_t size = 0;
    std::memcpy(&size, head.data(), sizeof size);
    if (size > kLongestTaskMessage) fail(Kind::kMalformed, "what came is no message");
    if (size == 0) continue;
    std::string message;
    message.reserve(std::min<std::size_t>(size, kReserved));
    while (message.size() < size) {
      const std::size_t have = message.size();
      message.resize(std::min<std::size_t>(size, have + std::max(have, kPiece)));
      co_await read_all(std::as_writable_bytes(std::span(message)).subspan(have));
    }
    co_return message;
  }
}

void TaskLink::send(std::string message) {
  if (!socket_.is_open() || closes_when_sent_) return;
  std::string head;
  ByteWriter(head).put(uint64_t{message.size()});
  if (message.size() < kPiece) {
    unsent_.push_back(head + message);
  } else {
    unsent_.push_back(std::move(head));
    unsent_.push_back(std::move(message));
  }
  flush();
}

void TaskLink::say_alive() {
  if (!std::exchange(has_written_, false) && unsent_.empty()) send({});
}

bool TaskLink::was_heard() { return std::exchange(was_heard_, false); }

Transfer TaskLink::push() {
  Transfer transfer;
  std::size_t since_pause = 0;
  while (!unsent_.empty() && transfer.state == Transfer::State::kDone && since_pause < kPiece) {
    transfer = stream_.write(std::as_bytes(std::span(unsent_.front())).subspan(sent_of_first_));
    sent_of_first_ += transfer.bytes;
    since_pause += transfer.bytes;
    has_written_ = has_written_ || transfer.bytes > 0;
    if (sent_of_first_ < unsent_.front().size()) continue;
    unsent_.pop_front();
    sent_of_first_ = 0;
  }
  return transfer;
}

void TaskLink::flush() {
  if (is_flushing_) return;
  is_flushing_ = true;
  const auto flush_all = [](std::shared_ptr<TaskLink> self) -> asio::awaitable<void> {
    try {
      while (!self->unsent_.empty()) {
        self->require_open();
        const Transfer transfer = self->push();
        if (transfer.state == Transfer::State::kDone) {
          co_await asio::post(self->context_, use_awaitable);
        } else {
          co_await self->ready_for(transfer);
        }
      }
    } catch (const ConnectionError&) {  // read() says it
    }
    self->unsent_.clear();
    self->sent_of_first_ = 0;
    self->is_flushing_ = false;
    if (self->closes_when_sent_) self->close();
  };
  asio::co_spawn(context_, flush_all(shared_from_this()), rethrow);
}

void TaskLink::close_when_sent() {
  closes_when_sent_ = true;
  if (!is_flushing_) close();
}

void TaskLink::close() {
  std::error_code ignored;
  // A process that this one has forked may hold the socket as well: the connection ends here all the same.
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace lockstep::internal::comm
