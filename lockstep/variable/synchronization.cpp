#include "lockstep/variable/synchronization.h"

namespace lockstep {

std::string EveryStepSynchronization::describe() const { return "at every step"; }

bool EveryStepSynchronization::trains_locally(const NewVariable&) const { return false; }

bool EveryStepSynchronization::averages_after(int64_t) const { return false; }

}  // namespace lockstep
