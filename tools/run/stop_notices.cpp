#include "tools/run/stop_notices.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::tools {

StopNotices::StopNotices() {
  std::array<int, 2> ends{};
  struct stat sender = {};
  const bool is_made = socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0;
  if (is_made) {
    receiver_ = internal::FileDescriptor(ends[0]);
    sender_ = internal::FileDescriptor(ends[1]);
  }
  if (!is_made || fstat(sender_.get(), &sender) != 0) {
    throw ClusterError("LS-LAUNCH", fmt::format("no socket for notices of workers: {}", std::strerror(errno)),
                       "raise the limit on open files (ulimit -n)");
  }
  address_ = fmt::format("{}:{}", sender_.get(), sender.st_ino);
}

bool StopNotices::has_come() {
  for (char byte = 0; recv(receiver_.get(), &byte, 1, 0) > 0;) has_come_ = true;
  return has_come_;
}

}  // namespace lockstep::tools
