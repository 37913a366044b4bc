// With which code the program ends: one for the person who typed the command, or one by which a launcher knows whether
// to start the job again.
#pragma once

#include <exception>

#include "lockstep/core/process/exit_codes.h"

namespace lockstep::tools {

enum ExitStatus : int { kClean = 0, kFindings = 1, kUsage = 2, kEnvironment = 3 };

/// `to_launcher` where `lockstep run` has started this process, which LOCKSTEP_RESTART_COUNT says; otherwise `alone`.
int exit_status(ExitStatus alone, ExitCode to_launcher);

/// That of an exception which ends a subcommand. A UsageError is kUsage in any case: no launcher starts that again.
int exit_status(const std::exception& error);

}  // namespace lockstep::tools
