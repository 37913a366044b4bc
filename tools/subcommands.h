// The subcommands' flags.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

#include "tools/models/models.h"

namespace lockstep::tools {

/// What the chosen subcommand does once all flags are read; gives the exit code.
using Action = std::function<int()>;

/// Each adds a subcommand to the program, which sets `chosen` when it is named.
void add_train(CLI::App& app, Action& chosen);
void add_bench(CLI::App& app, Action& chosen);
void add_checkpoint(CLI::App& app, Action& chosen);
void add_report(CLI::App& app, Action& chosen);
void add_cluster(CLI::App& app, Action& chosen);
void add_trace(CLI::App& app, Action& chosen);
/// `program` must hold what cut_program() gives when `chosen` is called.
void add_run(CLI::App& app, const std::vector<std::string>& program, Action& chosen);
/// The same.
void add_doctor(CLI::App& app, const std::vector<std::string>& program, Action& chosen);
/// The same.
void add_replay(CLI::App& app, const std::vector<std::string>& program, Action& chosen);

/// Where `words`, the command line without the program's own name, begins with "run", "doctor" or "replay": cuts off
/// the program that is to be run with its arguments, which are not for the parser, and gives them. `app` has the
/// subcommand `run`. The programs of `doctor` and `replay` stand behind "--".
std::vector<std::string> cut_program(const CLI::App& app, std::vector<std::string>& words);

/// Flags that several subcommands share: the model and its sizes; `model` keeps living.
CLI::Option* add_model_flags(CLI::App& app, ModelOptions& model);

}  // namespace lockstep::tools
