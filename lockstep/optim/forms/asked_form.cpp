#include "lockstep/optim/forms/asked_form.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/switches.h"

namespace lockstep::internal::inline optim {

AskedForm AskedForm::of(UpdateForm form, WireFormat wire) {
  return {.form = form,
          .wire = wire,
          .host_memory = choice_of("LOCKSTEP_HOST_MEMORY", {{"auto", true}, {"off", false}}, true),
          .buckets = choice_of("LOCKSTEP_BUCKETS", {{"auto", true}, {"off", false}}, true)};
}

void AskedForm::require_no_host_memory(const std::string& optimizer, const std::string& why) const {
  if (form != UpdateForm::kHostMemory) return;
  throw UsageError(
      "LS-UPDATE-FORM",
      fmt::format("the update of '{}' is asked for host memory, which workers cannot share: {}", optimizer, why),
      "ask for another form, or for auto: see docs/multi-worker.md");
}

}  // namespace lockstep::internal::optim
