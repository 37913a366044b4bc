// The flags of `lockstep checkpoint`.
#include <CLI/CLI.hpp>
#include <memory>

#include "tools/checkpoint/checkpoint.h"
#include "tools/subcommands.h"

namespace lockstep::tools {

void add_checkpoint(CLI::App& app, Action& chosen) {
  CLI::App* const checkpoint = app.add_subcommand("checkpoint", "Look into checkpoints");
  checkpoint->require_subcommand(1);
  const auto options = std::make_shared<CheckpointCommandOptions>();
  const auto add_to = [&](CLI::App& to, const char* name, const char* text, const char* path,
                          int (*action)(const CheckpointCommandOptions&)) {
    CLI::App* const command = to.add_subcommand(name, text);
    command->add_option("path", options->path, path)->required();
    command->add_flag("--json", options->json, "print a JSON object");
    command->callback([options, action, &chosen] { chosen = [options, action] { return action(*options); }; });
    return command;
  };
  const auto add = [&](const char* name, const char* text, const char* path,
                       int (*action)(const CheckpointCommandOptions&)) {
    return add_to(*checkpoint, name, text, path, action);
  };
  constexpr const char* kOne = "a checkpoint, or a folder with checkpoints, of which the newest is meant";
  add("list", "List the checkpoints in a folder, by their manifests and the headers of their files alone",
      "the folder, or a checkpoint", list_checkpoints);
  add("show", "Show what is in a checkpoint", kOne, show_checkpoint);
  add("verify", "Read every byte and say whether it is right", "a checkpoint, or a folder with checkpoints",
      verify_checkpoints);
  add("diff", "Show which values differ between two checkpoints, and by how much", kOne, diff_checkpoints)
      ->add_option("other", options->other, "another one")
      ->required();
  const char* const kExport = "Write the weights as a plain safetensors file, or as a state dictionary";
  for (CLI::App* const to : {checkpoint, &app}) {
    CLI::App* const save = add_to(*to, "export", kExport, kOne, export_checkpoint);
    save->add_option("file", options->file, "the file; PyTorch's torch.load reads one that ends with .pt or .pth")
        ->required();
    CLI::Option* const module =
        save->add_option("--module", options->module,
                         "what this module has, and no averages, under the module's own names (`model`: conv1.weight)");
    module->check(
        [](const std::string& name) { return std::string(name.empty() ? "the name of a module is empty" : ""); });
    save->add_option("--table", options->table, "the ids and weights of this table's rows alone")->excludes(module);
  }
}

}  // namespace lockstep::tools
