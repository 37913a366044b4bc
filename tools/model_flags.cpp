// The flags of the built-in models.
#include <CLI/CLI.hpp>

#include "tools/number_flags.h"
#include "tools/subcommands.h"

namespace lockstep::tools {

CLI::Option* add_model_flags(CLI::App& app, ModelOptions& model) {
  CLI::Option* const name =
      app.add_option("--model", model.name, "the model")->check(CLI::IsMember(model_names()))->capture_default_str();
  app.add_option("--widths", model.widths, "of the mlp: input, hidden layers, classes")
      ->delimiter(',')
      ->transform(whole_number())
      ->capture_default_str();
  const auto size = [&](const char* flag, int64_t& value, const char* what) {
    app.add_option(flag, value, what)->transform(whole_number(1, 1 << 20))->capture_default_str();
  };
  size("--layers", model.layers, "of the gpt: blocks of attention and dense layers");
  size("--width", model.width, "of the gpt: numbers for each character");
  size("--heads", model.heads, "of the gpt: parts of the width that attend on their own");
  size("--context", model.context, "of the gpt: characters that it sees at once");
  return name;
}

}  // namespace lockstep::tools
