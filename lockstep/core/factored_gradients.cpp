#include "lockstep/core/factored_gradients.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::internal {

Factoring factoring(FactoredGradients asked) {
  const char* const text = std::getenv("LOCKSTEP_FACTORED_GRADIENTS");
  const std::string_view set = text ? text : "";
  if (set == "off") return Factoring::kOff;
  if (!set.empty() && set != "auto" && set != "always") {
    throw UsageError("LS-ENVIRONMENT", fmt::format("LOCKSTEP_FACTORED_GRADIENTS is '{}'", set),
                     "set it to auto, off or always, or leave it unset");
  }
  if (asked == FactoredGradients::kOff) return Factoring::kOff;
  return set == "always" ? Factoring::kAlways : Factoring::kAuto;
}

const char* name_of(Factoring factoring) {
  switch (factoring) {
    case Factoring::kOff: return "off";
    case Factoring::kAuto: return "auto";
    case Factoring::kAlways: return "always";
  }
  return "unknown";
}

}  // namespace lockstep::internal
