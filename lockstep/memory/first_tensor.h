// Lets warm_up_math() come before the first tensor of the process, on whatever thread of the program that is made.
#pragma once

#include <c10/core/Allocator.h>

namespace lockstep::internal::inline memory {

/// The allocator that LibTorch has from the moment in which the library is loaded until the first strategy is made,
/// unless the program had set one of its own by then: LibTorch's own, behind warm_up_math(). So threads that the
/// program starts before it makes a strategy are safe too.
const c10::Allocator* first_tensor_allocator();

}  // namespace lockstep::internal::memory
