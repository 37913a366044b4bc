// The flags of `lockstep cluster`.
#include <CLI/CLI.hpp>
#include <memory>

#include "tools/cluster.h"
#include "tools/subcommands.h"

namespace lockstep::tools {

void add_cluster(CLI::App& app, Action& chosen) {
  CLI::App* const cluster =
      app.add_subcommand("cluster", "Show who this process would be, which source says so, and what disagrees");
  const auto options = std::make_shared<ClusterCommandOptions>();
  cluster->add_flag("--json", options->json, "print a JSON object");
  cluster->callback([options, &chosen] { chosen = [options] { return show_cluster(*options); }; });
}

}  // namespace lockstep::tools
