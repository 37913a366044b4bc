#include "lockstep/core/update_form.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::internal {

UpdateForm update_form(UpdateForm asked) {
  const char* const text = std::getenv("LOCKSTEP_UPDATE_FORM");
  const std::string_view set = text ? text : "";
  if (set.empty() || set == "auto") return asked;
  for (const UpdateForm form : {UpdateForm::kAuto, UpdateForm::kHostMemory, UpdateForm::kSums, UpdateForm::kFactors}) {
    if (set == name_of(form)) return form;
  }
  throw UsageError("LS-ENVIRONMENT", fmt::format("LOCKSTEP_UPDATE_FORM is '{}'", set),
                   "set it to auto, host-memory, sums or factors, or leave it unset");
}

const char* name_of(UpdateForm form) {
  switch (form) {
    case UpdateForm::kAuto: return "auto";
    case UpdateForm::kHostMemory: return "host-memory";
    case UpdateForm::kSums: return "sums";
    case UpdateForm::kFactors: return "factors";
  }
  return "unknown";
}

}  // namespace lockstep::internal
