// In which numbers sums of gradients travel between workers: docs/multi-worker.md#half-the-bytes.
#pragma once

#include <cstdint>

namespace lockstep {

/// Concerns gradients of float32 variables that travel as sums: not those that travel as factors, and not those that a
/// reducer of the program's own adds up. With one worker nothing travels.
enum class WireFormat : uint8_t {
  kExact,  // float32, as they are: the bits of one worker
  /// bfloat16: half the bytes. Each worker's partial sums are rounded to 8 significant bits, and so are the sums of
  /// all. Results then depend on the number of workers, and not on lanes or engines; workers of a host do not share
  /// the update (UpdateForm::kHostMemory is refused).
  kBFloat16,
};

namespace internal::inline core {

/// "exact" or "bfloat16".
const char* name_of(WireFormat format);

}  // namespace internal::core
}  // namespace lockstep
