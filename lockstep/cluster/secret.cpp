#include "lockstep/cluster/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "lockstep/cluster/named_text.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/file_descriptor.h"

namespace lockstep {

namespace {

constexpr std::size_t kShortest = 16;   // bytes: 128 bits, if they are random
constexpr std::size_t kLongest = 4096;  // bytes

constexpr const char* kMakeOne = "make one with: openssl rand -hex 32";

}  // namespace

Secret::Secret(std::string bytes) : bytes_(std::move(bytes)) {
  if (bytes_.size() >= kShortest && bytes_.size() <= kLongest) return;
  throw ClusterError("LS-CLUSTER-SECRET",
                     fmt::format("the secret of this job has {}; it needs {} to {}",
                                 internal::counted(static_cast<int64_t>(bytes_.size()), "byte"), kShortest, kLongest),
                     kMakeOne);
}

namespace internal::inline cluster {

Secret secret_from_file(const std::string& path) {
  const std::string name = in_quotes(path, 200);
  const auto refuse = [&](const std::string& why, const std::string& remedy) {
    throw ClusterError("LS-CLUSTER-SECRET", fmt::format("the file of the secret, {}, {}", name, why), remedy);
  };
  // Without waiting for the other side, should it be a pipe.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.is_open()) {
    refuse(fmt::format("cannot be opened: {}", std::generic_category().message(errno)),
           "set LOCKSTEP_SECRET_FILE to a file of yours");
  }
  struct stat status;
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    refuse("is not a regular file", "set LOCKSTEP_SECRET_FILE to a regular file");
  }
  if (status.st_uid != geteuid() && status.st_uid != 0) {
    refuse(fmt::format("belongs to user {}, and this process runs as user {}", status.st_uid, geteuid()),
           "give the file to the user who runs the job");
  }
  if ((status.st_mode & 077) != 0) {
    refuse(fmt::format("can be used by others than its owner: its mode is {:04o}", status.st_mode & 07777),
           fmt::format("chmod 600 {}", name));
  }
  std::string bytes;
  std::array<char, kLongest + 2> buffer;
  while (bytes.size() <= kLongest + 1) {
    const ssize_t got = read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      refuse(fmt::format("cannot be read: {}", std::generic_category().message(errno)),
             "check the file system it is on");
    if (got == 0) break;
    bytes.append(buffer.data(), static_cast<std::size_t>(got));
  }
  if (bytes.ends_with('\n')) bytes.pop_back();
  if (bytes.ends_with('\r')) bytes.pop_back();
  if (bytes.size() > kLongest) refuse(fmt::format("has more than {} bytes", kLongest), kMakeOne);
  if (bytes.size() < kShortest) {
    refuse(fmt::format("has {}; a secret needs {} to {}", internal::counted(static_cast<int64_t>(bytes.size()), "byte"),
                       kShortest, kLongest),
           kMakeOne);
  }
  return Secret(std::move(bytes));
}

}  // namespace internal::cluster
}  // namespace lockstep
