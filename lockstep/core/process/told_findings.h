// What a program tells `lockstep doctor`, which has started it.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::internal::inline core {

/// Whether `lockstep doctor` has started this program: LOCKSTEP_DOCTOR names the file that it reads. Read once.
bool doctor_watches();

// Each adds a line of JSON to that file, at once, so that it is there however the program ends. Nothing where no doctor
// watches. Where the file cannot be written, the log says so once. Any thread.

/// A strategy was made: its name and what describe() begins with.
void tell_strategy(const std::string& name);
/// A finding, when it is first noticed.
void tell_finding(const std::string& code, const std::string& text, int64_t step);

}  // namespace lockstep::internal::core
