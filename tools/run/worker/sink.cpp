#include "tools/run/worker/sink.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace lockstep::tools {

Sink::Sink(int fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) status.st_mode = 0;
  is_socket_ = S_ISSOCK(status.st_mode);
  if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) {
    // Opened anew, a pipe or a terminal can be made non-blocking for this process alone.
    file_ = internal::FileDescriptor(
        open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  }
  never_blocks_ = file_.is_open() || S_ISREG(status.st_mode);
  if (!file_.is_open()) file_ = internal::FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  lost_ = !file_.is_open();
}

void Sink::flush() {
  std::size_t done = 0;
  while (done < pending_.size()) {
    const char* const from = pending_.data() + done;
    const std::size_t size = pending_.size() - done;
    ssize_t written = 0;
    if (is_socket_) {
      written = send(fd(), from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else {
      // A pipe that could not be opened anew takes PIPE_BUF bytes when poll() finds room in it.
      written = write(fd(), from, never_blocks_ ? size : std::min<std::size_t>(size, PIPE_BUF));
    }
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (written < 0) return give_up();
    done += static_cast<std::size_t>(written);
    if (!never_blocks_ && !is_socket_) break;
  }
  pending_.erase(0, done);
}

void Sink::give_up() {
  lost_ = true;
  pending_.clear();
  pending_.shrink_to_fit();
}

bool are_same_file(int a, int b) {
  struct stat of_a = {};
  struct stat of_b = {};
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino &&
         of_a.st_rdev == of_b.st_rdev;
}

}  // namespace lockstep::tools
