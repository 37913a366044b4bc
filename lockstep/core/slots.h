// Where several workers keep an optimizer's slots: docs/multi-worker.md#slots-in-slices.
#pragma once

#include <cstdint>

namespace lockstep {

/// The choice changes memory and speed, and no bit of any result.
enum class Slots : uint8_t {
  kWhole,   // every worker has all of them; or, with UpdateForm::kHostMemory, all workers of the host have one copy
  kSliced,  // every worker updates a slice of each variable, and has the slots of that slice alone
};

namespace internal {

/// LOCKSTEP_SLOTS: "whole" or "sliced"; `asked` where it is unset. Throws a UsageError (LS-ENVIRONMENT) for any other
/// text.
Slots slots(Slots asked);

/// As in the environment.
const char* name_of(Slots slots);

}  // namespace internal
}  // namespace lockstep
