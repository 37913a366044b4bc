// The scopes in which a thread's operator calls are heard, and the one in which they are not.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline intercept {

class OperatorListener;  // intercept/operator_listener.h

/// While it lives, the listeners above autograd hear the calls of this thread, and bring_below_autograd() brings them
/// to those below. Scopes nest. The thread of a replica is in one for the length of its step. Claims the keys.
class InterceptedScope {
 public:
  InterceptedScope();
  ~InterceptedScope();
  InterceptedScope(const InterceptedScope&) = delete;
  InterceptedScope& operator=(const InterceptedScope&) = delete;

 private:
  const bool was_included_;
};

/// Whether the calling thread is in an InterceptedScope, or has its keys from a thread that is.
bool is_intercepted();

/// While it lives, `listener` hears every operator call of this thread below autograd: of forward and backward, in
/// place or not, views too, with gradients or without. Scopes nest; all listeners hear. A scope is destroyed on its
/// thread, after those that were made later. In a step it is the replica's thread, so open it inside of the step:
/// around `run` it would be part of what all replicas' threads inherit.
///
/// Autograd may run a part of a backward on threads of its own: in deep recursion, where backward is called inside of
/// backward for the 60th time. Such a thread has this thread's keys and not its listeners, see num_calls_unheard().
/// What kernels compute on threads of their own is part of the call that was heard.
class ListeningScope {
 public:
  explicit ListeningScope(OperatorListener& listener);
  ~ListeningScope();
  ListeningScope(const ListeningScope&) = delete;
  ListeningScope& operator=(const ListeningScope&) = delete;

 private:
  friend class OperatorCall;

  OperatorListener& listener_;
  ListeningScope* const outer_;
  const bool was_included_;
};

/// While it lives, the listeners of this thread's ListeningScopes hear nothing, unless a new one is made.
class DeafScope {
 public:
  DeafScope();
  ~DeafScope();
  DeafScope(const DeafScope&) = delete;
  DeafScope& operator=(const DeafScope&) = delete;

  /// The newest ListeningScope from before; null where there was none.
  ListeningScope* newest() const { return newest_; }
  /// Whether this thread would have heard calls below autograd for such a scope.
  bool was_included() const { return was_included_; }

 private:
  ListeningScope* const newest_;
  const bool was_included_;
};

/// While it lives, what this thread calls is LibTorch's alone: the listeners above autograd do not hear it, nor those
/// of the ListeningScopes that are open. Tensors without memory still get it where an operator needs it.
class UnheardScope {
 public:
  UnheardScope();
  ~UnheardScope();
  UnheardScope(const UnheardScope&) = delete;
  UnheardScope& operator=(const UnheardScope&) = delete;

 private:
  const DeafScope deaf_;
  const bool was_excluded_;
};

/// How many operator calls of this process were made by threads that had the keys of a ListeningScope and not its
/// listeners. Whoever has to know of every call compares it before and after.
int64_t num_calls_unheard();

}  // namespace lockstep::internal::intercept
