// Sockets between processes of one host: datagrams in order, with the other side's user and process.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/shared_memory/rendezvous_messages.h"
#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::internal::inline comm {

using Clock = std::chrono::steady_clock;

/// Waits at the place `name`, a name in the abstract namespace: no file. An empty FileDescriptor (-1) where another
/// process waits there already. A ClusterError (LS-CLUSTER-SOCKET) for any other failure.
FileDescriptor listen_at(const std::string& name);
/// Goes to the place; an empty FileDescriptor where nobody waits there, or too many have come at once.
FileDescriptor connect_to(const std::string& name);
/// The next process that has come to `listener`, without waiting; an empty FileDescriptor where there is none.
FileDescriptor accept_at(const FileDescriptor& listener);

/// The process at the other end, and whether it belongs to this process's user.
struct PeerCredentials {
  int64_t process = 0;
  bool is_same_user = false;
};
PeerCredentials credentials_of(const FileDescriptor& connection);

/// Sends a message, with a file beside it where `file` is not -1. Does not wait; false where the other side is gone or
/// does not read.
bool send(const FileDescriptor& connection, const RendezvousMessage& message, int file = -1);

/// What came: at most one of both, where neither is there nothing has come yet.
struct Received {
  std::optional<RendezvousMessage> message;
  FileDescriptor file;   // that came with the message
  bool is_over = false;  // the other side is gone, or sent something else than a message
};
/// Does not wait.
Received receive(const FileDescriptor& connection);

/// Waits until something can be received or accepted, or the other side is gone, or until `until`.
void wait_for_input(const FileDescriptor& file, Clock::time_point until);

}  // namespace lockstep::internal::comm
