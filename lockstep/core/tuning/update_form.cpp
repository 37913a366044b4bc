#include "lockstep/core/tuning/update_form.h"

#include "lockstep/core/switches.h"

namespace lockstep::internal::inline core {

UpdateForm update_form(UpdateForm asked) {
  return choice_of("LOCKSTEP_UPDATE_FORM",
                   {{"auto", asked},
                    {"host-memory", UpdateForm::kHostMemory},
                    {"sums", UpdateForm::kSums},
                    {"factors", UpdateForm::kFactors}},
                   asked);
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

}  // namespace lockstep::internal::core
