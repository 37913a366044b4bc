#include "lockstep/core/tuning/factored_gradients.h"

#include "lockstep/core/switches.h"

namespace lockstep::internal::inline core {

Factoring factoring(FactoredGradients asked) {
  const Factoring set = choice_of(
      "LOCKSTEP_FACTORED_GRADIENTS",
      {{"auto", Factoring::kAuto}, {"off", Factoring::kOff}, {"always", Factoring::kAlways}}, Factoring::kAuto);
  return asked == FactoredGradients::kOff ? Factoring::kOff : set;
}

const char* name_of(Factoring factoring) {
  switch (factoring) {
    case Factoring::kOff: return "off";
    case Factoring::kAuto: return "auto";
    case Factoring::kAlways: return "always";
  }
  return "unknown";
}

}  // namespace lockstep::internal::core
