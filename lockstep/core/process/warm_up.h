// The first calls of a process into LibTorch's matrix library, made where no other thread makes one.
#pragma once

namespace lockstep::internal::inline core {

/// Lets the matrix library find out which processor this is, once for the life of the process. MKL does so in the first
/// call of a vector function (exp, sqrt, tanh), and without a lock: of two threads that make their first calls at the
/// same time, one may compute by another processor's functions, or with another accuracy. docs/determinism.md says
/// which functions these are.
///
/// Promise: when it has returned, on any thread, no vector function can do that any more. Call it before a thread is
/// started that may compute with LibTorch. It changes nothing of the thread's modes, generators and settings, takes no
/// memory of tensors, and takes 0.3 ms the first time, a load afterwards. Any thread may call; where several call at
/// once, all return when the library is ready. Not for code that runs while the library is loaded: a program may choose
/// the bits of MKL by a call of its own (mkl_cbwr_set), which must be the first one.
void warm_up_math();

}  // namespace lockstep::internal::core
