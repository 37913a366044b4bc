#include "lockstep/replica/caller_state.h"

#include <ATen/ThreadLocalState.h>

#include "lockstep/core/denormals.h"

namespace lockstep::internal::inline replica {

CallerState::CallerState() = default;
CallerState::~CallerState() = default;

void CallerState::capture() {
  const ThreadModes now = thread_modes();
  if (!whole_ || now.must_copy || now != modes_) {
    whole_ = std::make_unique<at::ThreadLocalState>();
    modes_ = now;
  }
  floating_point_ = floating_point_modes();
}

void CallerState::enter() const {
  const ThreadModes now = thread_modes();
  if (now.must_copy || modes_.must_copy || now != modes_) {
    at::ThreadLocalState::setThreadLocalState(*whole_);
    set_autocast_details(modes_);
  }
  if (floating_point_modes() != floating_point_) set_floating_point_modes(floating_point_);
}

}  // namespace lockstep::internal::replica
