// The dispatch keys of LibTorch that the library has taken for itself: which they are, why these, and who may register
// what under them.
//
// LibTorch sends each call of an operator through the kernels of its dispatch keys, from the highest key to the lowest.
// A call has the keys of its tensors and those that its thread includes. On the thread of a replica two of them are the
// library's own:
//
//   at::mm -> [above autograd] -> autocast -> autograd -> views, version counters -> [below autograd] -> the CPU's
//   kernel
//
// Above autograd an argument can be changed in whatever code calls the operator, so that autograd sees the changed one:
// the generator of a random operator. Below autograd an operator is computed, also in backward: what happens there
// happens once for each operator that runs, and graphs, views and version counters are LibTorch's business.
//
// Why these two keys. Both exist in LibTorch 1.13 to 2.15, and its C++ libraries register nothing under them.
// TESTING_ONLY_GenericMode is the one that LibTorch's own test of fallbacks uses. Fake is the only free one between
// autograd and the kernels. torchdistx registers a fallback under it, and a later LibTorch may do so too, for its
// tensors without memory of the same name. kLazyKey then needs another value for that version.
//
// Who registers. A key has one fallback, for the operators without a kernel of their own under it, and an operator has
// one kernel under a key. All of them are registered in this folder, once in the process and for good: replicas of
// static strategies may still run while static objects are destroyed. Others register OperatorListeners. Under the key
// above autograd the fallback lets every operator fall through, which costs nothing: LibTorch takes the key out of the
// set before it looks for a kernel. Under the key below autograd the fallback hands the call to the listeners. No call
// has that key unless a ListeningScope is open on its thread, a tensor has no memory, or bring_below_autograd() has
// given it to this call.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

#include "lockstep/core/torch_compat.h"

namespace lockstep::internal::inline intercept {

/// The threads of an InterceptedScope, and so all threads of a step, include it.
inline constexpr c10::DispatchKey kAboveAutograd = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// The threads of a ListeningScope include it, and tensors without memory have it.
inline constexpr c10::DispatchKey kBelowAutograd = kLazyKey;

/// Those of `keys` whose kernels come after that of `key`.
inline c10::DispatchKeySet keys_after(c10::DispatchKeySet keys, c10::DispatchKey key) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
}

/// Registers both fallbacks, once in the process. Any thread may call; a later call costs as much as a look at a flag.
/// Throws a UsageError where another library of the process, or another copy of this one, has a fallback under one of
/// the keys: then nothing is registered under that key, and the next call tries again. A library that comes after this
/// one is refused by LibTorch.
void claim_dispatch_keys();

}  // namespace lockstep::internal::intercept
