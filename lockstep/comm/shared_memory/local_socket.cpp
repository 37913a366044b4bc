#include "lockstep/comm/shared_memory/local_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

[[noreturn]] void refuse(const char* call) {
  throw ClusterError("LS-CLUSTER-SOCKET",
                     fmt::format("this worker could not open a local socket ({}): {}", call, std::strerror(errno)),
                     "look at this host's limits of open files and memory");
}

FileDescriptor open_socket() {
  FileDescriptor file(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!file.is_open()) refuse("socket");
  return file;
}

/// An address whose first byte is zero is a name without a file.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string text = "lockstep-" + name;
  const std::size_t count = std::min(text.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, text.data(), count);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count)};
}

}  // namespace

FileDescriptor listen_at(const std::string& name) {
  FileDescriptor file = open_socket();
  const auto [address, length] = address_of(name);
  if (bind(file.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EADDRINUSE) return FileDescriptor();
    refuse("bind");
  }
  constexpr int kBacklog = 128;
  if (listen(file.get(), kBacklog) != 0) refuse("listen");
  return file;
}

FileDescriptor connect_to(const std::string& name) {
  FileDescriptor file = open_socket();
  const auto [address, length] = address_of(name);
  if (connect(file.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return file;
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return FileDescriptor();
  refuse("connect");
}

FileDescriptor accept_at(const FileDescriptor& listener) {
  FileDescriptor file(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!file.is_open() && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) refuse("accept");
  return file;
}

PeerCredentials credentials_of(const FileDescriptor& connection) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return {};
  return {.process = credentials.pid, .is_same_user = credentials.uid == geteuid()};
}

bool send(const FileDescriptor& connection, const RendezvousMessage& message, int file) {
  std::string bytes = encode(message);
  iovec part = {.iov_base = bytes.data(), .iov_len = bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (file >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &file, sizeof(int));
  }
  return sendmsg(connection.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

Received receive(const FileDescriptor& connection) {
  std::string bytes(kLongestMessage, '\0');
  iovec part = {.iov_base = bytes.data(), .iov_len = bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t count = recvmsg(connection.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  Received received;
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return received;
  if (count > 0) {
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(rights), sizeof(int));
      received.file = FileDescriptor(file);
    }
    if ((header.msg_flags & MSG_CTRUNC) != 0) {
      errno = EMFILE;
      refuse("recvmsg");
    }
    if ((header.msg_flags & MSG_TRUNC) == 0) {
      received.message = decode_rendezvous({bytes.data(), static_cast<std::size_t>(count)});
    }
  }
  received.is_over = !received.message;
  return received;
}

void wait_for_input(const FileDescriptor& file, Clock::time_point until) {
  pollfd one = {.fd = file.get(), .events = POLLIN, .revents = 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  poll(&one, one.fd >= 0 ? 1 : 0, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
}

}  // namespace lockstep::internal::comm
