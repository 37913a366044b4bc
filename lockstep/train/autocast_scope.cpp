#include "lockstep/train/autocast_scope.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep::internal::inline train {

namespace {

/// Autocast of a device is on where its key is not left out of dispatch: so all versions of LibTorch have it.
c10::DispatchKey key_of(c10::DeviceType device) {
  return device == c10::DeviceType::CPU ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA;
}

}  // namespace

AutocastScope::AutocastScope(c10::DeviceType device)
    : before_(thread_modes()), key_(key_of(device)), was_off_(c10::impl::tls_is_dispatch_key_excluded(key_)) {
  ThreadModes modes = before_;
  modes.autocast_dtypes = {at::kBFloat16, at::kBFloat16};
  set_autocast_details(modes);
  c10::impl::tls_set_dispatch_key_excluded(key_, false);
}

AutocastScope::~AutocastScope() {
  c10::impl::tls_set_dispatch_key_excluded(key_, was_off_);
  set_autocast_details(before_);
}

}  // namespace lockstep::internal::train
