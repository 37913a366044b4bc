#include "lockstep/intercept/scopes.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "lockstep/intercept/keys.h"

namespace lockstep::internal::inline intercept {

namespace {

// Invariant: while this is not null, the thread includes kBelowAutograd.
thread_local ListeningScope* newest_scope = nullptr;

/// Includes the key or leaves it out, and gives whether it was included.
bool include(c10::DispatchKey key, bool is_included) {
  const bool was_included = c10::impl::tls_is_dispatch_key_included(key);
  if (was_included != is_included) c10::impl::tls_set_dispatch_key_included(key, is_included);
  return was_included;
}

}  // namespace

InterceptedScope::InterceptedScope()
    : was_included_((claim_dispatch_keys(), c10::impl::tls_is_dispatch_key_included(kAboveAutograd))) {
  if (!was_included_) c10::impl::tls_set_dispatch_key_included(kAboveAutograd, true);
}

InterceptedScope::~InterceptedScope() {
  if (!was_included_) c10::impl::tls_set_dispatch_key_included(kAboveAutograd, false);
}

bool is_intercepted() { return c10::impl::tls_is_dispatch_key_included(kAboveAutograd); }

ListeningScope::ListeningScope(OperatorListener& listener)
    : listener_(listener),
      outer_((claim_dispatch_keys(), std::exchange(newest_scope, this))),
      was_included_(include(kBelowAutograd, true)) {}

ListeningScope::~ListeningScope() {
  newest_scope = outer_;
  include(kBelowAutograd, was_included_);
}

DeafScope::DeafScope() : newest_(std::exchange(newest_scope, nullptr)), was_included_(include(kBelowAutograd, false)) {}

DeafScope::~DeafScope() {
  newest_scope = newest_;
  include(kBelowAutograd, was_included_);
}

UnheardScope::UnheardScope() : was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kAboveAutograd)) {
  if (!was_excluded_) c10::impl::tls_set_dispatch_key_excluded(kAboveAutograd, true);
}

UnheardScope::~UnheardScope() {
  if (!was_excluded_) c10::impl::tls_set_dispatch_key_excluded(kAboveAutograd, false);
}

}  // namespace lockstep::internal::intercept
