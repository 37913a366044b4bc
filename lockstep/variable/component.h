// One replica's tensor of a variable, and what the library last left of it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace lockstep::internal {

/// Which writes of others are looked for.
enum class Watch : uint8_t {
  kNothing,
  kMemory,  // other memory, dtype or layout; the replica may write in place
  kWrites,  // any
};

/// Touched by its replica's thread, or while all are at rest. All that a step looks at, on a cache line of its own:
/// with thousands of variables each line counts, and replicas change theirs side by side.
struct alignas(64) Component {
  at::Tensor tensor;
  const void* address = nullptr;  // of the tensor's memory
  uint64_t layout = 0;            // a digest of dtype, device, sizes and strides
  uint32_t version = 0;
  Watch watch = Watch::kNothing;

  /// Takes the tensor, as it is, for what the library left.
  void expect();
  /// Whether the tensor is as the library left it, as far as address, layout and version tell.
  bool as_left() const;
  /// After the library wrote the tensor's memory through a pointer: the version counter moves, so that a backward
  /// through a graph recorded before fails.
  void updated() {
    tensor.unsafeGetTensorImpl()->bump_version();
    ++version;
  }
};

}  // namespace lockstep::internal
