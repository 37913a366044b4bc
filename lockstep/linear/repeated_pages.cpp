#include "lockstep/linear/repeated_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::internal::inline linear {

RepeatedPages::RepeatedPages(std::size_t bytes, std::size_t spacing) : spacing_(spacing) {
  const std::size_t periods = std::max<std::size_t>(1, bytes / kPeriod + (bytes % kPeriod != 0));
  if (periods > SIZE_MAX / kPeriod) throw std::bad_alloc();
  const FileDescriptor file(memfd_create("lockstep test numbers", MFD_CLOEXEC));
  if (!file.is_open()) throw std::bad_alloc();
  length_ = periods * kPeriod;
  // Addresses first, then the same piece of memory at each place: a mapping in the range cannot hit anything else.
  void* const range = mmap(nullptr, length_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  // The file's first period is the one that repeats; periods of their own come behind it.
  const std::size_t last = periods - 1;
  const std::size_t own = spacing_ == 0 ? 0 : last / spacing_ + 1 + (last % spacing_ != 0 ? 1 : 0);
  bool mapped = range != MAP_FAILED && ftruncate(file.get(), static_cast<off_t>((1 + own) * kPeriod)) == 0;
  std::size_t next = 1;
  for (std::size_t i = 0; mapped && i < periods; ++i) {
    void* const place = static_cast<char*>(range) + i * kPeriod;
    const auto offset = static_cast<off_t>(is_own(i) ? next++ * kPeriod : 0);
    constexpr int kFlags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
    mapped = mmap(place, kPeriod, PROT_READ | PROT_WRITE, kFlags, file.get(), offset) != MAP_FAILED;
  }
  if (!mapped) {
    if (range != MAP_FAILED) munmap(range, length_);
    throw std::bad_alloc();
  }
  data_ = range;
}

RepeatedPages::~RepeatedPages() { munmap(data_, length_); }

}  // namespace lockstep::internal::linear
