// Sockets between processes of one host: datagrams in order, with the other side's user and process.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/shared_memory/local_messages.h"

namespace lockstep::internal {

using Clock = std::chrono::steady_clock;

/// A file descriptor, closed at the end.
class OwnedFile {
 public:
  explicit OwnedFile(int file = -1) : file_(file) {}
  OwnedFile(OwnedFile&& other) noexcept : file_(other.release()) {}
  OwnedFile& operator=(OwnedFile&& other) noexcept;
  ~OwnedFile();

  int get() const { return file_; }
  int release();

 private:
  int file_;
};

/// Waits at the place `name`, a name in the abstract namespace: no file. An empty OwnedFile (-1) where another process
/// waits there already. A ClusterError (LS-CLUSTER-SOCKET) for any other failure.
OwnedFile listen_at(const std::string& name);
/// Goes to the place; an empty OwnedFile where nobody waits there, or too many have come at once.
OwnedFile connect_to(const std::string& name);
/// The next process that has come to `listener`, without waiting; an empty OwnedFile where there is none.
OwnedFile accept_at(const OwnedFile& listener);

/// The process at the other end, and whether it belongs to this process's user.
struct Peer {
  int64_t process = 0;
  bool is_same_user = false;
};
Peer peer_of(const OwnedFile& connection);

/// Sends a message, with a file beside it where `file` is not -1. Does not wait; false where the other side is gone or
/// does not read.
bool send(const OwnedFile& connection, const LocalMessage& message, int file = -1);

/// What came: at most one of both, where neither is there nothing has come yet.
struct Received {
  std::optional<LocalMessage> message;
  OwnedFile file;        // that came with the message
  bool is_over = false;  // the other side is gone, or sent something else than a message
};
/// Does not wait.
Received receive(const OwnedFile& connection);

/// Waits until something can be received or accepted, or the other side is gone, or until `until`.
void wait_for_input(const OwnedFile& file, Clock::time_point until);

}  // namespace lockstep::internal
