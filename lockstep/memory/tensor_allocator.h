// Gives LibTorch's tensors memory that is kept and reused (memory/tensor_cache.h). It is installed once for the
// process; LOCKSTEP_TENSOR_CACHE in the environment switches it off or bounds it. docs/memory.md explains it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace lockstep::internal::inline memory {

/// What LOCKSTEP_TENSOR_CACHE says.
struct TensorCacheSetting {
  bool on = true;
  std::optional<std::size_t> idle_limit = std::nullopt;  // in bytes; none: half of the memory that this process may use

  bool operator==(const TensorCacheSetting&) const = default;
};

/// Reads the variable's text. Empty is the default: on, but off in a library that was built for a sanitizer,
/// because a sanitizer sees the edges of a tensor only where each tensor has a separate block. Throws a UsageError for
/// a text other than "on", "off" and a number of bytes, which may end in K, M or G; "0" is off.
TensorCacheSetting tensor_cache_setting(std::string_view text);

/// Makes all host tensors from now on live in blocks of memory/tensor_cache.h. The first call that does not throw
/// decides; later calls do nothing. An allocator that the program itself has given to LibTorch stays. Any thread may
/// call, but not while another thread sets LibTorch's allocator. Throws a UsageError as tensor_cache_setting does.
void install_tensor_allocator();

/// Where tensors' memory comes from, in one line for Strategy::describe(). Any thread may call.
std::string tensor_allocator_description();

}  // namespace lockstep::internal::memory
