#include "lockstep/comm/network/wire/channel.h"

#include <utility>

namespace lockstep::internal::inline comm {

SocketChannel::SocketChannel(FileDescriptor socket, Stream stream)
    : socket_(std::move(socket)), stream_(std::move(stream)) {}

std::chrono::nanoseconds SocketChannel::watch(bool for_room, std::vector<pollfd>& files) {
  const auto events = static_cast<short>(for_room ? POLLIN | POLLOUT : POLLIN);
  files.push_back({.fd = socket_.get(), .events = events, .revents = 0});
  return std::chrono::nanoseconds::max();
}

}  // namespace lockstep::internal::comm
