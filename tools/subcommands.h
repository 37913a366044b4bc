// The subcommands' flags.
#pragma once

#include <CLI/App.hpp>
#include <functional>

#include "tools/models/models.h"

namespace lockstep::tools {

/// What the chosen subcommand does once all flags are read; gives the exit code.
using Action = std::function<int()>;

/// Each adds a subcommand to the program, which sets `chosen` when it is named.
void add_train(CLI::App& app, Action& chosen);
void add_bench(CLI::App& app, Action& chosen);

/// Flags that several subcommands share: the model and its sizes; `model` keeps living.
CLI::Option* add_model_flags(CLI::App& app, ModelOptions& model);

}  // namespace lockstep::tools
