// The arithmetic of reductions on the memory that holds tensors: what a device's plug-in brings, and what the host has.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <span>

namespace lockstep::internal::inline reduce {

/// Values of one dtype, float32 or float64, one of each replica, which are added element by element.
struct RangeSum {
  at::ScalarType type;
  std::span<const void* const> inputs;  // by replica
  std::span<void* const> outputs;       // as many, which overlap none of the inputs unless they are at one address
  int64_t begin;                        // elements [begin, end) of each
  int64_t end;
  bool mean;
  bool past_caches;  // more is written in all than a cache holds
};

/// All addresses are of one memory. A call is for a whole range, on the calling thread; how a memory works through it
/// is its own business. The bits are those of the loops in loops/ and in core/loops/. See also UpdateKernels
/// (optim/update/update_kernels.h).
class Kernels {
 public:
  virtual ~Kernels() = default;

  /// Writes the sum or mean in tree order to each output.
  virtual void sum(const RangeSum& range) const = 0;
  /// Writes the checksum (core/loops/checksum.h) of each block of `bytes` bytes, one word after another.
  virtual void checksum_blocks(const void* memory, int64_t bytes, uint64_t* checksums) const = 0;
  /// The ranges do not overlap.
  virtual void copy(void* to, const void* from, int64_t bytes) const = 0;
};

/// Those of the host's memory: loops on the calling thread.
const Kernels& host_kernels();

/// Those of the memory in which a tensor lies: today the host's, of every tensor that the library works with.
inline const Kernels& kernels_of(const at::Tensor& /*tensor*/) { return host_kernels(); }

/// Copies the bytes of one dense tensor over those of another of the same dtype and layout, in the same memory. It
/// allocates nothing, and LibTorch's modes and version counters do not matter to it.
void copy_bytes(const at::Tensor& to, const at::Tensor& from);

}  // namespace lockstep::internal::reduce
