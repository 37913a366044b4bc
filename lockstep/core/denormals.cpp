#include "lockstep/core/denormals.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace lockstep::internal::inline core {

namespace {

#if defined(__SSE__)
constexpr uint32_t kStatusFlags = 0x3f;       // the sticky exception flags of MXCSR; the rest are modes
constexpr uint32_t kFlushes = 0x8000 | 0x40;  // results (FTZ) and operands (DAZ)
#elif defined(__aarch64__)
constexpr uint32_t kFlushes = 1u << 24;  // FZ of FPCR
#else
constexpr uint32_t kFlushes = 0;
#endif

}  // namespace

uint32_t floating_point_modes() {
#if defined(__SSE__)
  return _mm_getcsr() & ~kStatusFlags;
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value)::"memory");
  return static_cast<uint32_t>(value);
#else
  return 0;
#endif
}

void set_floating_point_modes([[maybe_unused]] uint32_t modes) {
#if defined(__SSE__)
  _mm_setcsr(modes | (_mm_getcsr() & kStatusFlags));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" ::"r"(static_cast<uint64_t>(modes)) : "memory");
#endif
}

uint32_t with_denormals(uint32_t modes, Denormals denormals) {
  return denormals == Denormals::kFlush ? modes | kFlushes : modes & ~kFlushes;
}

}  // namespace lockstep::internal::core
