// The kernels of the host's memory.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/kernels.h"
#include "lockstep/reduce/loops/stream_copy.h"
#include "lockstep/reduce/loops/tree_sum.h"

namespace lockstep::internal::inline reduce {

namespace {

/// Whether each output begins at a multiple of kStreamAlignment.
bool all_aligned(std::span<void* const> outputs) {
  return std::ranges::all_of(
      outputs, [](const void* output) { return reinterpret_cast<uintptr_t>(output) % kStreamAlignment == 0; });
}

template <class T>
void add_range(const RangeSum& range) {
  const auto replicas = static_cast<int64_t>(range.inputs.size());
  const auto* const inputs = reinterpret_cast<const T* const*>(range.inputs.data());
  auto* const outputs = reinterpret_cast<T* const*>(range.outputs.data());
  // A range begins a number of whole cache lines after the output's begin.
  if (range.past_caches && replicas <= kOneRowReplicas && all_aligned(range.outputs)) {
    stream_tree_sum<T>()(inputs, replicas, range.begin, range.end, range.mean, outputs);
    return;
  }
  thread_local std::vector<T> scratch;  // grown once
  const auto rows = static_cast<std::size_t>(scratch_rows(replicas) * kSumBlock);
  if (scratch.size() < rows) scratch.resize(rows);
  const TreeSum<T> sum_of = tree_sum<T>();
  const bool in_place = replicas <= kOneRowReplicas;
  for (int64_t offset = range.begin; offset < range.end; offset += kSumBlock) {
    const int64_t count = std::min(kSumBlock, range.end - offset);
    T* const room = in_place ? outputs[0] + offset : scratch.data();
    const T* sum = sum_of(inputs, replicas, offset, count, room);
    if (range.mean) {
      const T divisor = static_cast<T>(replicas);
      for (int64_t j = 0; j < count; ++j) room[j] = sum[j] / divisor;
      sum = room;
    }
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    for (int64_t r = 0; r < replicas; ++r) {
      T* const output = outputs[r] + offset;
      if (output == sum) continue;
      if (range.past_caches) {
        stream_copy(output, sum, bytes);
      } else {
        std::memcpy(output, sum, bytes);
      }
    }
  }
  if (range.past_caches) end_stream_copies();
}

class HostKernels final : public Kernels {
 public:
  void sum(const RangeSum& range) const override {
    if (range.type == at::kDouble) {
      add_range<double>(range);
    } else {
      add_range<float>(range);
    }
  }
  void checksum_blocks(const void* memory, int64_t bytes, uint64_t* checksums) const override {
    for (int64_t begin = 0; begin < bytes; begin += kBlockBytes)
      *checksums++ = checksum(static_cast<const char*>(memory) + begin, std::min(kBlockBytes, bytes - begin));
  }
  void copy(void* to, const void* from, int64_t bytes) const override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
};

}  // namespace

const Kernels& host_kernels() {
  static const HostKernels kernels;
  return kernels;
}

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  kernels_of(to).copy(to.data_ptr(), address_of(from), static_cast<int64_t>(from.nbytes()));
}

}  // namespace lockstep::internal::reduce
