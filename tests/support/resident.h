// How much memory tensors really take.
#pragma once

#include <sys/mman.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace lockstep::testing {

/// How many kilobytes of a tensor's memory the system has given to this process.
inline int64_t resident_kilobytes(const torch::Tensor& tensor) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.data_ptr()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(tensor.data_ptr()) + tensor.nbytes();
  std::vector<unsigned char> is_there((end - begin + page - 1) / page);
  if (mincore(reinterpret_cast<void*>(begin), end - begin, is_there.data()) != 0) throw std::runtime_error("mincore");
  const auto pages = std::count_if(is_there.begin(), is_there.end(), [](unsigned char one) { return (one & 1) != 0; });
  return static_cast<int64_t>(static_cast<uintptr_t>(pages) * page / 1024);
}

inline constexpr int64_t kHugePages = 3 * 2048;  // kilobytes that the system may give beyond what was written

}  // namespace lockstep::testing
