// The fallback below autograd, through which the listeners there hear operator calls. For this folder.
#pragma once

#include <torch/library.h>

namespace lockstep::internal::inline intercept {

/// What claim_dispatch_keys() registers under kBelowAutograd.
torch::CppFunction fallback_below_autograd();

}  // namespace lockstep::internal::intercept
