#include "lockstep/core/tuning/slots.h"

#include "lockstep/core/switches.h"

namespace lockstep::internal::inline core {

Slots slots(Slots asked) {
  return choice_of("LOCKSTEP_SLOTS", {{"whole", Slots::kWhole}, {"sliced", Slots::kSliced}}, asked);
}

const char* name_of(Slots slots) {
  switch (slots) {
    case Slots::kWhole: return "whole";
    case Slots::kSliced: return "sliced";
  }
  return "unknown";
}

}  // namespace lockstep::internal::core
