#include "lockstep/replica/caller_state.h"

#include <ATen/ThreadLocalState.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace lockstep::internal {

namespace {

#if defined(__SSE__)
constexpr uint32_t kStatusFlags = 0x3f;  // the sticky exception flags of MXCSR; the rest are modes
uint32_t floating_point_modes() { return _mm_getcsr() & ~kStatusFlags; }
void set_floating_point_modes(uint32_t modes) { _mm_setcsr(modes | (_mm_getcsr() & kStatusFlags)); }
#elif defined(__aarch64__)
uint32_t floating_point_modes() {
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return static_cast<uint32_t>(value);
}
void set_floating_point_modes(uint32_t modes) { asm volatile("msr fpcr, %0" ::"r"(static_cast<uint64_t>(modes))); }
#else
uint32_t floating_point_modes() { return 0; }
void set_floating_point_modes(uint32_t) {}
#endif

}  // namespace

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

}  // namespace lockstep::internal
