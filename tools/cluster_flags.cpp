// The flags of `lockstep cluster`.
#include <CLI/CLI.hpp>
#include <memory>

#include "tools/cluster.h"
#include "tools/number_flags.h"
#include "tools/subcommands.h"

namespace lockstep::tools {

void add_cluster(CLI::App& app, Action& chosen) {
  CLI::App* const cluster =
      app.add_subcommand("cluster", "Show who this process would be, which source says so, and what disagrees");
  const auto options = std::make_shared<ClusterCommandOptions>();
  cluster->add_flag("--json", options->json, "print a JSON object");
  CLI::Option* const check =
      cluster->add_flag("--check", options->check,
                        "meet the other workers, all of which must run this command now, and show who was reached");
  cluster->add_option("--within", options->check_seconds, "how many seconds to wait for the others")
      ->needs(check)
      ->transform(whole_number(1, 3600))
      ->capture_default_str();
  cluster->add_option("--engine", options->engine, "what connects the workers")
      ->needs(check)
      ->check(CLI::IsMember({"auto", "shared-memory", "tls", "tcp", "ucx", "mpi"}))
      ->capture_default_str();
  cluster->callback([options, &chosen] { chosen = [options] { return show_cluster(*options); }; });
}

}  // namespace lockstep::tools
