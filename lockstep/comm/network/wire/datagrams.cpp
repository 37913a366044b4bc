#include "lockstep/comm/network/wire/datagrams.h"

#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/comm/network/wire/connection.h"
#include "lockstep/comm/network/wire/datagram.h"
#include "lockstep/comm/network/wire/endpoint.h"

namespace lockstep::internal::inline comm {

namespace {

using asio::use_awaitable;
using asio::ip::udp;

}  // namespace

Datagrams::Datagrams(asio::io_context& context, const std::string& address) : socket_(context) {
  const std::optional<udp::endpoint> endpoint = endpoint_of<udp>(address, 0);
  if (!endpoint) return;
  std::error_code error;
  socket_.open(endpoint->protocol(), error);
  if (!error) close_on_exec(socket_.native_handle());
  if (!error) socket_.bind(*endpoint, error);
  if (!error) socket_.non_blocking(true, error);
  if (!error) port_ = socket_.local_endpoint(error).port();
}

void Datagrams::start(const std::vector<Member>& members, int64_t self, const std::string& key,
                      std::function<void(int64_t worker, const Frame& frame)> heard) {
  if (port_ == 0) return;
  self_ = self;
  key_ = key;
  heard_ = std::move(heard);
  last_.resize(members.size());
  endpoints_.resize(members.size());
  for (const Member& member : members) {
    if (member.worker == self || member.datagram_port == 0) continue;
    const auto endpoint = endpoint_of<udp>(member.address, member.datagram_port);
    if (endpoint) endpoints_[static_cast<std::size_t>(member.worker)] = *endpoint;
  }
  asio::co_spawn(socket_.get_executor(), receive(), rethrow);
}

void Datagrams::send(const Frame& frame) {
  if (endpoints_.empty()) return;
  const std::string datagram = datagram_of(frame);
  for (const udp::endpoint& endpoint : endpoints_) send_bytes(datagram, endpoint);
}

void Datagrams::send(const Frame& frame, std::span<const int64_t> workers) {
  if (endpoints_.empty() || workers.empty()) return;
  const std::string datagram = datagram_of(frame);
  for (const int64_t worker : workers) send_bytes(datagram, endpoints_[static_cast<std::size_t>(worker)]);
}

void Datagrams::send_bytes(const std::string& datagram, const udp::endpoint& endpoint) {
  std::error_code ignored;  // what is lost is lost
  if (endpoint.port() != 0) socket_.send_to(asio::buffer(datagram), endpoint, 0, ignored);
}

std::string Datagrams::datagram_of(const Frame& frame) {
  return encode(Datagram{.worker = self_, .count = ++sent_, .frame = frame}, key_);
}

asio::awaitable<void> Datagrams::receive() {
  std::string bytes(kLongestDatagram, '\0');
  while (true) {
    udp::endpoint from;
    std::error_code error;
    const std::size_t size =
        co_await socket_.async_receive_from(asio::buffer(bytes), from, asio::redirect_error(use_awaitable, error));
    if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
    // Another error is the answer to one that was sent: nobody is there.
    if (!error) read(std::string_view(bytes).substr(0, size));
  }
}

void Datagrams::read(std::string_view bytes) {
  const std::optional<Datagram> datagram = decode_datagram(bytes, key_);
  if (!datagram) return;
  const int64_t worker = datagram->worker;
  if (worker < 0 || worker >= static_cast<int64_t>(last_.size()) || worker == self_) return;
  uint64_t& last = last_[static_cast<std::size_t>(worker)];
  if (datagram->count <= last) return;
  last = datagram->count;
  heard_(worker, datagram->frame);
}

}  // namespace lockstep::internal::comm
