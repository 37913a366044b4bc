// How several workers update an optimizer's variables: docs/multi-worker.md#forms-of-the-update.
#pragma once

#include <cstdint>

namespace lockstep {

/// The choice changes speed, memory and what travels between workers, and no bit of any result, unless
/// WireFormat::kBFloat16 rounds what travels as sums.
enum class UpdateForm : uint8_t {
  kAuto,  // host memory where workers share hosts; between hosts, and otherwise, factors where these are smaller than
          // sums
  kHostMemory,  // the workers of each host share the update of its one copy; an error where no two workers can
  kSums,        // every worker updates all, and all gradients travel as sums
  kFactors,     // every worker updates all; a gradient that is kept as factors travels as factors, others as sums
};

namespace internal::inline core {

/// LOCKSTEP_UPDATE_FORM: "auto", "host-memory", "sums" or "factors"; `asked` where it is unset or auto. Throws a
/// UsageError (LS-ENVIRONMENT) for any other text.
UpdateForm update_form(UpdateForm asked);

/// As in the environment.
const char* name_of(UpdateForm form);

}  // namespace internal::core
}  // namespace lockstep
