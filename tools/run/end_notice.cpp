#include "tools/run/end_notice.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::tools {

EndNotice::EndNotice() {
  std::array<int, 2> ends{};
  struct stat receiver = {};
  const bool is_made = pipe2(ends.data(), O_CLOEXEC) == 0;
  if (is_made) {
    receiver_ = internal::FileDescriptor(ends[0]);
    sender_ = internal::FileDescriptor(ends[1]);
  }
  if (!is_made || fstat(receiver_.get(), &receiver) != 0) {
    throw ClusterError("LS-LAUNCH", fmt::format("no pipe for the notice of the end: {}", std::strerror(errno)),
                       "raise the limit on open files (ulimit -n)");
  }
  address_ = fmt::format("{}:{}", receiver_.get(), receiver.st_ino);
}

}  // namespace lockstep::tools
