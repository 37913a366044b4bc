// A request that training ends after the present step, as a scheduler makes it by SIGTERM.
#pragma once

#include <csignal>

namespace lockstep {

/// From now on this signal asks for a stop each time it comes, in place of ending the process or being ignored. A
/// handler that the program had before is called as well; one that it installs later takes the place of this one.
/// Nothing else is done: `Strategy::stop_requested()` says after each step whether any worker was asked, and the
/// program ends by itself. The request is never withdrawn. System calls go on, so a blocking read does not end. Calling
/// it again for the same signal does nothing. A UsageError (LS-OPTION) where the system refuses the signal, as it does
/// for SIGKILL. Any thread, before or during training.
///
/// A process that is not in a step, because it reads its input for a long time, say, learns of it after its next one. A
/// launcher that waits less than a step sends SIGKILL then.
void stop_on_signal(int signal = SIGTERM);

/// Asks for a stop without a signal, as a program does that knows its time is over. Any thread, and signal handlers.
void request_stop() noexcept;

namespace internal::inline core {
/// Whether this process was asked for a stop. It stays so.
bool is_stop_requested() noexcept;
/// As if nobody had asked; for tests.
void forget_stop_request() noexcept;
}  // namespace internal::core

}  // namespace lockstep
