// What workers agree on where rules of the program's own have computed new values, before anything is written.
#pragma once

#include "lockstep/optim/forms/form.h"
#include "lockstep/optim/update_work.h"

namespace lockstep::internal::inline optim {

/// Throws on all workers what a rule has thrown on any; and a DivergenceError (LS-RULE-DIFFERS), which names a variable
/// and the workers, where several compute the same values and have not got the same. Call after the rules were called,
/// while all replicas are at rest.
void agree_on_rules(const UpdateWork& work, const Form& form);

}  // namespace lockstep::internal::optim
