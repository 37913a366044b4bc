// The flags of `lockstep doctor`.
#include <CLI/CLI.hpp>
#include <memory>

#include "tools/doctor.h"
#include "tools/subcommands.h"

namespace lockstep::tools {

void add_doctor(CLI::App& app, const std::vector<std::string>& program, Action& chosen) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* const doctor = app.add_subcommand("doctor", "Say what a program, or the run of a report, does wrong");
  doctor->footer(
      "lockstep doctor -- PROGRAM ARGS: starts the program, also `lockstep run -n 2 -- PROGRAM`, lets each strategy "
      "compare its replicas after every step, and prints what the library finds. lockstep doctor REPORT: prints what a "
      "run has found. Exit code 1 where something was found, where the program fails, and where it makes no strategy.");
  doctor->add_option("REPORT", options->report, "what `lockstep train --json` or html_report has written");
  doctor->add_option("--json", options->json, "write the findings to this file");
  doctor->callback(
      [options, &program, &chosen] { chosen = [options, &program] { return run_doctor(*options, program); }; });
}

}  // namespace lockstep::tools
