// What the thread that calls run() hands to every replica: grad mode, inference mode, autocast, and the rest of
// at::ThreadLocalState, with the floating-point modes (denormals, rounding) that LibTorch leaves out of it.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/core/torch_compat.h"

namespace at {
class ThreadLocalState;
}

namespace lockstep::internal::inline replica {

/// The caller's thread-local state. Call `capture` on the caller's thread before the replicas start, `enter` on each
/// replica's thread, and `restore` on the caller's thread at the end, where it undoes what a step left behind. `enter`
/// and `restore` are cheap where nothing changed.
class CallerState {
 public:
  CallerState();
  ~CallerState();
  void capture();
  void enter() const;
  void restore() const { enter(); }

 private:
  ThreadModes modes_;
  uint32_t floating_point_ = 0;
  std::unique_ptr<at::ThreadLocalState> whole_;
};

}  // namespace lockstep::internal::replica
