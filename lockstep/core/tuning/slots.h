// Where several workers keep an optimizer's slots: docs/multi-worker.md#slots-in-slices.
#pragma once

#include <cstdint>

namespace lockstep {

/// The choice changes memory and speed, and no bit of any result. (kSliced: others call it sharded optimizer state.)
enum class Slots : uint8_t {
  kWhole,   // on every worker; or, where workers of a host share the update, once for all of them
  kSliced,  // each worker updates a part of the variables' blocks, and has the slots of this part alone
};

namespace internal::inline core {

/// LOCKSTEP_SLOTS: "whole" or "sliced"; `asked` where it is unset. Throws a UsageError (LS-ENVIRONMENT) for any other
/// text.
Slots slots(Slots asked);

/// As in the environment.
const char* name_of(Slots slots);

}  // namespace internal::core
}  // namespace lockstep
