#include "lockstep/data/stages/cache_io.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "lockstep/core/error.h"
#include "lockstep/core/process/file_descriptor.h"
#include "lockstep/data/formats/input.h"

namespace lockstep::internal {

bool read_at(int file, void* to, std::size_t count, int64_t offset) {
  auto* next = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t got = pread(file, next, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    offset += got;
    count -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_at(int file, const void* from, std::size_t count, int64_t offset) {
  const auto* next = static_cast<const char*>(from);
  while (count > 0) {
    const ssize_t put = pwrite(file, next, count, offset);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    next += put;
    offset += put;
    count -= static_cast<std::size_t>(put);
  }
  return true;
}

void refuse_cache(const std::string& path, int error) {
  if (is_out_of_descriptors(error) || error == ENOMEM) refuse_to_open(path, error);
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  std::string why = std::generic_category().message(error);
  const char* cure = "see the system's reason, or call cache() without a path";
  if (error == 0 || error == EISDIR) {
    why = "it is not a plain file";
    cure = "give the path of a file, or of none yet";
  } else if (!fs::is_directory(folder, ignored)) {
    why = fmt::format("there is no folder '{}'", folder);
    cure = "make that folder, or give another path";
  } else if (error == EACCES || error == EPERM || error == EROFS) {
    why = fmt::format("'{}' may not be read or written ({})", fs::exists(path, ignored) ? path : folder, why);
    cure = "give a path that this user may read and write, or call cache() without one";
  }
  throw DataError("LS-DATA-FILE", fmt::format("the cache '{}' cannot be used: {}", path, why), cure);
}

}  // namespace lockstep::internal
