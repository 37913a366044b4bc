// Numbers below the smallest normal one: about 1e-38 for float32. They are part of what decides bits, and slow.
#pragma once

#include <cstdint>

namespace lockstep {

/// What arithmetic does with denormal numbers, on every thread of a step. A processor computes with them tens of times
/// slower, and they are no rarity: the squared gradients that Adam keeps for a converged model are full of them.
/// TensorFlow and JAX flush them on the CPU; LibTorch by itself keeps them (at::globalContext().setFlushDenormal).
enum class Denormals {
  kFlush,  // reads and gives 0 in their place
  kKeep,
};

namespace internal {

/// The calling thread's floating-point modes (rounding, denormals, traps), as the processor has them; without the flags
/// that record what happened. 0 where the library does not know the processor.
uint32_t floating_point_modes();
void set_floating_point_modes(uint32_t modes);
/// `modes` with denormals treated as said.
uint32_t with_denormals(uint32_t modes, Denormals denormals);

}  // namespace internal
}  // namespace lockstep
