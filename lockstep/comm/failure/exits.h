// What has to be done for a World that still exists when the program ends.
#pragma once

#include <functional>

namespace lockstep::internal::inline comm {

/// Calls `leave` when the program ends by exit() or by returning from main(), in the process that called this and in no
/// child of it, unless forget_at_exit() comes before. `world` tells entries apart. `leave` does not wait for long: the
/// program ends. Any thread may call both.
void at_exit(const void* world, std::function<void()> leave);
void forget_at_exit(const void* world);

}  // namespace lockstep::internal::comm
