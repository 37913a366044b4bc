// What carries the bytes of calls between this worker and one other: a connection, or the messages of a plug-in.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/comm/network/wire/stream.h"
#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::internal::inline comm {

/// Bytes in both directions, in their order. Nothing waits. One thread at a time uses it.
class Channel {
 public:
  virtual ~Channel() = default;

  virtual Transfer read(std::span<std::byte> place) = 0;
  virtual Transfer write(std::span<const std::byte> bytes) = 0;
  /// Whether all that was written arrives though this worker does nothing more. To be called until it does.
  virtual bool flush() = 0;
  /// Before a sleep until there are bytes or, where it is asked for, room: adds the files that poll() has to watch. How
  /// long the sleep may take at most; 0 where there is something to do at once.
  virtual std::chrono::nanoseconds watch(bool for_room, std::vector<pollfd>& files) = 0;
};

/// A TCP connection, with or without TLS.
class SocketChannel final : public Channel {
 public:
  SocketChannel(FileDescriptor socket, Stream stream);

  Transfer read(std::span<std::byte> place) override { return stream_.read(place); }
  Transfer write(std::span<const std::byte> bytes) override { return stream_.write(bytes); }
  bool flush() override { return true; }  // the kernel sends what it has taken
  std::chrono::nanoseconds watch(bool for_room, std::vector<pollfd>& files) override;

 private:
  const FileDescriptor socket_;
  Stream stream_;
};

}  // namespace lockstep::internal::comm
