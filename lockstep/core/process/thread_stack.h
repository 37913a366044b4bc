// Where a thread of this process is now: for messages about threads that do not come back.
#pragma once

#include <pthread.h>

#include <string>

namespace lockstep::internal::inline core {

/// The functions that the thread is in, innermost first, each on a line of its own; a line that says so where the
/// thread gives no answer within a second. Functions of a program have names where it is linked with -rdynamic.
/// Interrupts a system call of the thread no more than any signal does that it restarts after. The thread must not have
/// been joined. Any thread may call, but for that one.
std::string stack_of_thread(pthread_t thread);

}  // namespace lockstep::internal::core
