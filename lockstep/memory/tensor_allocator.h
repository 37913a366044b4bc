// LibTorch's tensors in memory that is kept and reused (memory/tensor_cache.h): installed once for the process, and
// switched off or bounded by LOCKSTEP_TENSOR_CACHE in the environment. docs/memory.md has the whole story.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace lockstep::internal {

/// What LOCKSTEP_TENSOR_CACHE says.
struct TensorCacheSetting {
  bool on = true;
  std::optional<std::size_t> idle_limit = std::nullopt;  // in bytes; none: half of the memory that this process may use

  bool operator==(const TensorCacheSetting&) const = default;
};

/// Reads the variable's text; null or empty is the default: on, but off in a library that was built for a sanitizer,
/// which sees the edges of a tensor only where each has a block of its own. Throws UsageError for anything but "on",
/// "off" and a number of bytes, which may end in K, M or G; "0" is off.
TensorCacheSetting tensor_cache_setting(const char* text);

/// Makes all host tensors from now on live in blocks of memory/tensor_cache.h. The first call decides, later ones do
/// nothing. An allocator that the program itself has put in LibTorch's place stays. Any thread, but not while another
/// sets LibTorch's allocator. Throws UsageError as tensor_cache_setting does.
void install_tensor_allocator();

/// Where tensors' memory comes from, in one line for Strategy::describe(). Any thread.
std::string tensor_allocator_description();

}  // namespace lockstep::internal
