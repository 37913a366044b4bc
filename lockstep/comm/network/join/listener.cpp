#include "lockstep/comm/network/join/listener.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/comm/join/port_holder.h"
#include "lockstep/comm/join/socket_address.h"
#include "lockstep/comm/network/wire/endpoint.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep::internal::inline comm {

namespace {

using asio::use_awaitable;
using asio::ip::tcp;
using Kind = ConnectionError::Kind;

const char* text_of(Kind kind) {
  switch (kind) {
    case Kind::kNoAnswer: return "said nothing in time";
    case Kind::kNotTls: return "speaks no TLS";
    case Kind::kWrongSecret: return "does not know this job's secret";
    case Kind::kMalformed: return "sent what no worker sends";
    case Kind::kRefused:
    case Kind::kClosed:
    case Kind::kBroken: break;
  }
  return "closed it before it had said who it is";
}

[[noreturn]] void throw_cannot_listen(const std::string& who, const std::string& address, uint16_t port, int error) {
  const std::string holder = error == EADDRINUSE ? port_holder(address, port) : "";
  throw ClusterError("LS-CLUSTER-SOCKET",
                     fmt::format("{} cannot listen at {}, port {}: {}{}{}", who, address, port, std::strerror(error),
                                 holder.empty() ? "" : "; the port is used by ", holder),
                     error == EADDRINUSE
                         ? "end the other program that listens there, or give this worker another port"
                         : "correct the address, or set LOCKSTEP_INTERFACE to an interface of this host");
}

/// The first byte of every TLS handshake.
constexpr unsigned char kTlsHandshake = 22;

}  // namespace

void Listener::Newcomer::give_up() {
  is_too_slow = true;
  if (connection) {
    connection->close();
  } else {
    std::error_code ignored;
    socket.close(ignored);
  }
}

Listener::Listener(asio::io_context& context, const std::string& address, uint16_t port, const TlsContext& keys,
                   std::string who)
    : context_(context), tls_(keys), who_(std::move(who)), acceptor_(context) {
  const std::optional<tcp::endpoint> endpoint = endpoint_of<tcp>(address, port);
  if (!endpoint) throw_cannot_listen(who_, address, port, EADDRNOTAVAIL);
  std::error_code error;
  acceptor_.open(endpoint->protocol(), error);
  if (!error) close_on_exec(acceptor_.native_handle());
  // The ports of a job that has ended can be used at once.
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(*endpoint, error);
  if (!error) acceptor_.listen(1024, error);
  if (error) throw_cannot_listen(who_, address, port, error.value());
  port_ = acceptor_.local_endpoint(error).port();
}

Listener::~Listener() {
  const int64_t count = refused();
  if (count > 1) log(LogLevel::kInfo, fmt::format("{} refused {} connections in all", who_, count));
}

int64_t Listener::refused() const { return std::accumulate(refused_.begin(), refused_.end(), int64_t{0}); }

void Listener::start(Welcome welcome) {
  welcome_ = std::move(welcome);
  asio::co_spawn(context_, accept(), rethrow);
}

asio::awaitable<void> Listener::accept() {
  asio::steady_timer pause(context_);
  while (true) {
    tcp::socket socket(context_);
    std::error_code error;
    co_await acceptor_.async_accept(socket, asio::redirect_error(use_awaitable, error));
    if (error == asio::error::operation_aborted) co_return;
    if (error) {
      // No more files, say: there may be some later.
      pause.expires_after(std::chrono::milliseconds(50));
      co_await pause.async_wait(asio::redirect_error(use_awaitable, error));
      continue;
    }
    close_on_exec(socket.native_handle());
    if (newcomers_.size() >= kMostNewcomers) newcomers_.front().give_up();
    while (newcomers_.size() >= kMostNewcomers) co_await asio::post(context_, use_awaitable);
    newcomers_.push_back({std::move(socket)});
    asio::co_spawn(context_, greet(std::prev(newcomers_.end())), rethrow);
  }
}

asio::awaitable<void> Listener::greet(Place place) {
  std::error_code ignored;
  const tcp::endpoint remote = place->socket.remote_endpoint(ignored);
  const std::string address = ignored ? "an unknown address" : number_of(*remote.data());
  asio::steady_timer timer(context_, kLongestHandshake);
  timer.async_wait([place](std::error_code error) {
    if (!error) place->give_up();
  });
  std::optional<Kind> refused;
  std::shared_ptr<Connection> connection;
  Frame frame;
  try {
    std::error_code error;
    co_await place->socket.async_wait(tcp::socket::wait_read, asio::redirect_error(use_awaitable, error));
    unsigned char first = 0;
    const ssize_t peeked = error || !place->socket.is_open()
                               ? -1
                               : ::recv(place->socket.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (peeked <= 0) throw ConnectionError(Kind::kClosed, "the other side closed the connection");
    if (first != kTlsHandshake) throw ConnectionError(Kind::kNotTls, "no TLS");
    place->connection = std::make_shared<Connection>(std::move(place->socket), tls_, Stream::Role::kServer);
    connection = place->connection;
    co_await connection->handshake();
    frame = co_await connection->read();
  } catch (const ConnectionError& error) {
    refused = error.kind;
  } catch (const std::exception&) {  // no memory for a connection
    refused = Kind::kClosed;
  }
  // Where the timer has run, or cannot be cancelled any more, its function comes before what is posted now.
  if (timer.cancel() == 0 && !place->is_too_slow) co_await asio::post(context_, use_awaitable);
  if (place->is_too_slow) refused = Kind::kNoAnswer;
  if (refused && connection) connection->close();
  newcomers_.erase(place);
  if (refused) {
    count(*refused, address);
  } else {
    welcome_(std::move(connection), std::move(frame));
  }
}

void Listener::refuse(Connection& connection) {
  count(Kind::kMalformed, connection.remote_address());
  connection.close();
}

void Listener::count(Kind kind, const std::string& remote) {
  const int64_t before = refused_[static_cast<std::size_t>(kind)]++;
  if (before > 0) return;
  log(LogLevel::kWarning, fmt::format("{} refused a connection from {}, which {}; more of this kind are only counted",
                                      who_, remote, text_of(kind)));
}

}  // namespace lockstep::internal::comm
