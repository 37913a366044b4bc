#include "lockstep/comm/shared_memory/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

/// Without them another process could cut the file, and whoever touches what is gone gets a signal.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_SEAL;

[[noreturn]] void refuse(const std::string& fact) {
  throw ClusterError("LS-CLUSTER-MEMORY", fact, "look at this host's limits of memory and of open files");
}
[[noreturn]] void refuse_by_system(const char* call) {
  refuse(fmt::format("the system gives no memory that workers can share ({}): {}", call, std::strerror(errno)));
}

std::byte* map_file(int file, std::size_t length) {
  void* const memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) refuse_by_system("mmap");
  // A forked child has no part in the run, and must not write into the memory of all.
  madvise(memory, length, MADV_DONTFORK);
  return static_cast<std::byte*>(memory);
}

}  // namespace

SharedMemory::SharedMemory(FileDescriptor file, std::byte* data, std::size_t length)
    : file_(std::move(file)), data_(data), length_(length) {}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)), data_(std::exchange(other.data_, nullptr)), length_(other.length_) {}

SharedMemory::~SharedMemory() {
  // In a forked child the memory is not mapped, and its addresses may be somebody else's by now.
  if (data_ && !process_.is_in_child()) munmap(data_, length_);
}

SharedMemory SharedMemory::create(std::size_t length) {
  FileDescriptor file(memfd_create("lockstep workers", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open()) refuse_by_system("memfd_create");
  if (ftruncate(file.get(), static_cast<off_t>(length)) != 0 || fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    refuse_by_system("ftruncate, fcntl");
  }
  std::byte* const data = map_file(file.get(), length);
  return {std::move(file), data, length};
}

SharedMemory SharedMemory::map(int file, std::size_t length) {
  struct stat about = {};
  if (fstat(file, &about) != 0 || static_cast<std::size_t>(about.st_size) < length) {
    refuse(fmt::format("the memory that another worker gave has {} bytes, and {} are expected", about.st_size, length));
  }
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) refuse("another worker gave memory that can be cut");
  FileDescriptor kept(fcntl(file, F_DUPFD_CLOEXEC, 0));
  if (!kept.is_open()) refuse_by_system("fcntl");
  std::byte* const data = map_file(kept.get(), length);
  return {std::move(kept), data, length};
}

}  // namespace lockstep::internal::comm
