// What a thread does between two looks at a word that another thread is about to change.
#pragma once

namespace lockstep::internal::inline core {

/// Waits some tens of cycles and leaves the core's other thread its turn. A processor that is not known does not wait.
inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` does nothing on most of these processors
#endif
}

}  // namespace lockstep::internal::core
