#include "lockstep/core/slots.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::internal {

Slots slots(Slots asked) {
  const char* const text = std::getenv("LOCKSTEP_SLOTS");
  const std::string_view set = text ? text : "";
  if (set.empty()) return asked;
  for (const Slots one : {Slots::kWhole, Slots::kSliced}) {
    if (set == name_of(one)) return one;
  }
  throw UsageError("LS-ENVIRONMENT", fmt::format("LOCKSTEP_SLOTS is '{}'", set),
                   "set it to whole or sliced, or leave it unset");
}

const char* name_of(Slots slots) {
  switch (slots) {
    case Slots::kWhole: return "whole";
    case Slots::kSliced: return "sliced";
  }
  return "unknown";
}

}  // namespace lockstep::internal
