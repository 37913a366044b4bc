#include "lockstep/memory/lazy_zeros.h"

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "lockstep/core/tensors/host_bytes.h"

namespace lockstep::internal::inline memory {

namespace {

constexpr std::size_t kLargestOrdinary = std::size_t{64} << 10;

}  // namespace

at::Tensor lazy_zeros_like(const at::Tensor& like) {
  const std::size_t bytes = like.nbytes();
  if (bytes <= kLargestOrdinary) return at::empty_strided(like.sizes(), like.strides(), like.options()).zero_();
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  const std::shared_ptr<void> mapping(memory, [bytes](void* mapped) { munmap(mapped, bytes); });
  const auto keep = [mapping](void*) {};
  return at::from_blob(memory, like.sizes(), like.strides(), keep, like.options().requires_grad(false));
}

void clear_lazily(const at::Tensor& tensor, int64_t begin, int64_t bytes) {
  if (bytes <= 0) return;
  auto* const first = reinterpret_cast<char*>(host_bytes_to_write(tensor).data()) + begin;
  char* const end = first + bytes;
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto ceiling = [](char* at) {
    return at + (page - reinterpret_cast<uintptr_t>(at) % page) % page;  // the next page's first byte
  };
  char* const first_page = ceiling(first);
  char* const end_page = end - reinterpret_cast<uintptr_t>(end) % page;
  // A small tensor lies in memory of LibTorch's allocator, beside other things: its bytes are zeroed in place.
  const bool is_mapped = tensor.nbytes() > kLargestOrdinary;
  if (!is_mapped || first_page >= end_page ||
      madvise(first_page, static_cast<std::size_t>(end_page - first_page), MADV_DONTNEED) != 0) {
    std::memset(first, 0, static_cast<std::size_t>(bytes));
    return;
  }
  std::memset(first, 0, static_cast<std::size_t>(first_page - first));
  std::memset(end_page, 0, static_cast<std::size_t>(end - end_page));
}

}  // namespace lockstep::internal::memory
