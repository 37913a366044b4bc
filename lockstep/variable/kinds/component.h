// One replica's tensor of a variable, and the state in which the library last left it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace lockstep::internal::inline variable {

/// Which foreign writes to a component are looked for.
enum class Watch : uint8_t {
  kNothing,
  kMemory,  // a replaced memory, dtype or layout; the replica may write in place
  kWrites,  // these, and writes in place
};

/// Used by its replica's thread, or while all replicas are at rest. All that a step reads of it lies on one cache line,
/// which no other component shares: with thousands of variables each line counts, and replicas change their components
/// at the same time.
///
/// Invariant: the fields that `watch` asks for describe the tensor as the library last left it. Each write of the
/// library to the tensor ends in expect() or updated(), so a difference is a foreign write.
struct alignas(64) Component {
  at::Tensor tensor;
  const void* address = nullptr;  // of the tensor's memory
  uint64_t layout = 0;            // a digest of dtype, device, sizes and strides
  uint32_t version = 0;
  Watch watch = Watch::kNothing;

  /// Records the tensor's present state as the one in which the library left it.
  void expect();
  /// Whether the tensor is as the library left it, as far as address, layout and version tell.
  bool as_left() const;
  /// Call after the library wrote the tensor's memory through a pointer. Moves the version counter, so that a backward
  /// through a graph recorded before the write fails, and moves `version` with it.
  void updated() {
    tensor.unsafeGetTensorImpl()->bump_version();
    ++version;
  }
  /// Call after the library moved the tensor's value to other memory.
  void moved();
};

}  // namespace lockstep::internal::variable
