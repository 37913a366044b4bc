// torchrun's variables, which Kubeflow's PyTorchJob, Ray Train and many scripts set as well.
#include <fmt/format.h>

#include "lockstep/cluster/named_text.h"
#include "lockstep/cluster/sources.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline cluster {

namespace {

/// Whether torchrun's agent itself listens on MASTER_PORT.
bool agent_has_master_port(const Environment& environment) {
  const std::string name = "TORCHELASTIC_USE_AGENT_STORE";
  const std::string value = environment.get(name).value_or("False");
  if (value == "True" || value == "true" || value == "1") return true;
  if (value != "False" && value != "false" && value != "0") throw_malformed({name, value}, 0, "True or False");
  return false;
}

}  // namespace

std::optional<ClusterSpec> torchrun(const Environment& environment) {
  const bool is_torchrun = environment.has("TORCHELASTIC_RUN_ID");
  const bool has_chief = environment.has("MASTER_ADDR") || environment.has("LOCKSTEP_CHIEF_ADDRESS");
  if (!is_torchrun && !(environment.has("RANK") && environment.has("WORLD_SIZE") && has_chief)) return std::nullopt;
  if (is_torchrun) require(environment, shown(environment, "TORCHELASTIC_RUN_ID"), {"RANK", "WORLD_SIZE"});

  ClusterSpec spec = rank_and_size(environment, "RANK", "WORLD_SIZE");
  spec.job_id = job_id_of(environment, {"TORCHELASTIC_RUN_ID"});
  if (spec.job_id == "none") spec.job_id.clear();  // what torchrun says where it was given no id
  set_local_worker(spec, environment, "LOCAL_RANK");
  set_chief_from_master(spec, environment);
  if (!spec.chief_address().empty() && agent_has_master_port(environment)) {
    require(environment, shown(environment, "TORCHELASTIC_USE_AGENT_STORE"), {"MASTER_PORT"});
    Address chief = parse_address({"MASTER_ADDR", spec.chief_address()});
    chief.port = static_cast<uint16_t>(chief.port < 65535 ? chief.port + 1 : chief.port - 1);
    set_chief_address(spec, to_string(chief));
    spec.origins.chief_port.clear();
  }
  return spec;
}

}  // namespace lockstep::internal::cluster
