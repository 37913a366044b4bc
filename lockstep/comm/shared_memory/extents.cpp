#include "lockstep/comm/shared_memory/extents.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/process/forks.h"

namespace lockstep::internal::inline comm {

namespace {

/// Of this system: 4096 on x86-64, up to 65536 on Arm. Pieces of a file are mapped by whole pages.
std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t whole_pages(std::size_t bytes) { return (bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

[[noreturn]] void refuse(const char* call, std::size_t bytes) {
  throw ClusterError(
      "LS-CLUSTER-MEMORY",
      fmt::format("the system gives no {} bytes that workers can share ({}): {}", bytes, call, std::strerror(errno)),
      "look at this host's limits of memory, or set LOCKSTEP_HOST_MEMORY=off");
}

/// One mapping of one piece. In its first page is the number of workers that have let go of it.
class Extent {
 public:
  Extent(std::shared_ptr<const FileDescriptor> file, off_t offset, std::size_t length, int64_t workers)
      : file_(std::move(file)), offset_(offset), length_(length), workers_(workers) {
    // A signal ends the call, which then begins from nothing: with a profiler's signals it would never end.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = fallocate(file_->get(), 0, offset_, static_cast<off_t>(length_));
    const int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    errno = error;
    if (failed != 0) refuse("fallocate", length_);
    void* const memory = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_SHARED, file_->get(), offset_);
    if (memory == MAP_FAILED) refuse("mmap", length_);
    // A forked child has no part in the run, and must not write into the memory of all.
    madvise(memory, length_, MADV_DONTFORK);
    memory_ = static_cast<std::byte*>(memory);
  }
  ~Extent() {
    // In a forked child the memory is not mapped, and its addresses may be somebody else's by now.
    if (!memory_ || process_.is_in_child()) return;
    using Count = std::atomic<int64_t>;
    const bool last = std::launder(reinterpret_cast<Count*>(memory_))->fetch_add(1) + 1 == workers_;
    munmap(memory_, length_);
    if (last) fallocate(file_->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_, static_cast<off_t>(length_));
  }
  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;

  std::byte* values() const { return memory_ + page_bytes(); }

 private:
  const ProcessMark process_;
  const std::shared_ptr<const FileDescriptor> file_;
  const off_t offset_;
  const std::size_t length_;
  const int64_t workers_;
  std::byte* memory_ = nullptr;
};

}  // namespace

Extents::Extents(int file, std::size_t begin, std::vector<int64_t> workers)
    : file_(std::make_shared<const FileDescriptor>(fcntl(file, F_DUPFD_CLOEXEC, 0))),
      workers_(std::move(workers)),
      next_(static_cast<off_t>(whole_pages(begin))) {
  if (file_->is_open()) return;
  throw ClusterError("LS-CLUSTER-MEMORY",
                     fmt::format("the system gives no memory that workers can share (fcntl): {}", std::strerror(errno)),
                     "look at this host's limit of open files");
}

std::shared_ptr<std::byte> Extents::allocate(std::size_t bytes) {
  ++calls_;
  // The system would give page after page until it has none for anybody. All workers that map the file are on this
  // host, so all of them refuse, and all keep the same next_.
  const auto all = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes();
  if (bytes > all) {
    errno = ENOMEM;
    refuse("more than there is", bytes);
  }
  const std::size_t length = page_bytes() + whole_pages(bytes);
  const off_t offset = std::exchange(next_, next_ + static_cast<off_t>(length));
  const auto extent = std::make_shared<Extent>(file_, offset, length, static_cast<int64_t>(workers_.size()));
  return {extent, extent->values()};
}

}  // namespace lockstep::internal::comm
