// By which form the program and the environment want an optimizer's variables to be updated.
#pragma once

#include <string>

#include "lockstep/core/tuning/update_form.h"
#include "lockstep/core/tuning/wire_format.h"

namespace lockstep::internal::inline optim {

struct AskedForm {
  UpdateForm form = UpdateForm::kAuto;
  WireFormat wire = WireFormat::kExact;
  // What the environment allows:
  bool host_memory = true;  // workers of a host may share memory
  bool buckets = true;      // sums may leave during backward

  /// These two options, and whether LOCKSTEP_HOST_MEMORY and LOCKSTEP_BUCKETS are not "off". A UsageError
  /// (LS-ENVIRONMENT) for a text that is neither empty, "auto" nor "off".
  static AskedForm of(UpdateForm form, WireFormat wire);

  /// Throws a UsageError (LS-UPDATE-FORM) where host memory is asked for, which workers cannot share.
  void require_no_host_memory(const std::string& optimizer, const std::string& why) const;
};

}  // namespace lockstep::internal::optim
