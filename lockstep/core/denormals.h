// Denormal numbers, which lie below the smallest normal one (about 1e-38 for float32): whether arithmetic flushes them.
#pragma once

#include <cstdint>

namespace lockstep {

/// What arithmetic does with denormal numbers, on every thread of a step. The choice changes the bits of results. A
/// processor computes with denormal numbers tens of times slower, and they are common: the squared gradients that Adam
/// keeps for a converged model are full of them. TensorFlow and JAX flush them on the CPU; LibTorch by itself keeps
/// them (at::globalContext().setFlushDenormal).
enum class Denormals {
  kFlush,  // arithmetic reads and gives 0 in their place
  kKeep,
};

namespace internal::inline core {

/// The calling thread's floating-point modes (rounding, denormals, traps) in the processor's own form, without the
/// flags that record exceptions. 0 on a processor that the library does not know.
uint32_t floating_point_modes();
/// Sets the modes of the calling thread.
void set_floating_point_modes(uint32_t modes);
/// `modes`, changed so that denormals are treated as `denormals` says.
uint32_t with_denormals(uint32_t modes, Denormals denormals);

}  // namespace internal::core
}  // namespace lockstep
