// PET_*: torchrun's options as variables, which Kubeflow's trainer gives to programs that it does not start by
// torchrun.
#include <fmt/format.h>

#include "lockstep/cluster/named_text.h"
#include "lockstep/cluster/sources.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline cluster {

namespace {

constexpr int64_t kDefaultPort = 29500;  // torchrun's, where PET_MASTER_PORT is not set

/// Refuses a count of workers for each node: only torchrun would have started them.
void check_one_per_node(const Environment& environment) {
  const std::string name = "PET_NPROC_PER_NODE";
  const std::string value = environment.get(name).value_or("1");
  if (value == "auto" || value == "cpu" || value == "gpu" || value == "xpu") return;
  if (whole_number({name, value}, 1, kMostTasks) == 1) return;
  throw ClusterError(
      "LS-CLUSTER-INCOMPLETE",
      fmt::format("{} asks torchrun for several workers on each node, and torchrun did not start this program",
                  shown(environment, name)),
      "start the program by torchrun --no-python, or set PET_NPROC_PER_NODE=1 for one worker on each node");
}

/// How many nodes: "4", or "4:4"; a range such as "2:4" is a job whose size torchrun decides.
int64_t nodes_of(const Environment& environment) {
  const NamedText value{"PET_NNODES", environment.get("PET_NNODES").value_or("1")};
  const std::size_t colon = value.text.find(':');
  if (colon == std::string::npos) return whole_number(value, 1, kMostTasks);
  const int64_t least = whole_number({"the first number of PET_NNODES", value.text.substr(0, colon)}, 1, kMostTasks);
  const int64_t most = whole_number({"the last number of PET_NNODES", value.text.substr(colon + 1)}, 1, kMostTasks);
  if (least == most) return most;
  throw ClusterError("LS-CLUSTER-INCOMPLETE",
                     fmt::format("{} leaves the number of nodes to torchrun, which did not start this program",
                                 shown(environment, "PET_NNODES")),
                     "start the program by torchrun --no-python, or set PET_NNODES to one number");
}

}  // namespace

std::optional<ClusterSpec> pet(const Environment& environment) {
  if (environment.has("TORCHELASTIC_RUN_ID") || environment.has("LOCAL_RANK")) return std::nullopt;
  const bool has_nodes = environment.has("PET_NNODES") || environment.has("PET_NODE_RANK");
  if (!has_nodes && !is_above_one(environment.get("PET_NPROC_PER_NODE"))) return std::nullopt;
  check_one_per_node(environment);
  if (environment.integer("PET_NODE_RANK", 0, kMostTasks - 1).value_or(0) > 0)
    require(environment, shown(environment, "PET_NODE_RANK"), {"PET_NNODES"});
  const int64_t count = nodes_of(environment);
  if (count > 1) require(environment, shown(environment, "PET_NNODES"), {"PET_NODE_RANK"});
  ClusterSpec spec = workers(count, environment.integer("PET_NODE_RANK", 0, count - 1).value_or(0));
  spec.origins.num_workers = shown(environment, "PET_NNODES");
  spec.origins.worker_index = shown(environment, "PET_NODE_RANK");
  spec.job_id = job_id_of(environment, {"PET_RDZV_ID"});
  if (const std::optional<std::string> host = environment.get("PET_MASTER_ADDR")) {
    const int64_t port = environment.integer("PET_MASTER_PORT", 1, 65535).value_or(kDefaultPort);
    set_chief_address(spec, to_string(Address{parse_host({"PET_MASTER_ADDR", *host}), static_cast<uint16_t>(port)}));
    spec.origins.chief_host = shown(environment, "PET_MASTER_ADDR");
    spec.origins.chief_port = shown(environment, "PET_MASTER_PORT");
  }
  return spec;
}

}  // namespace lockstep::internal::cluster
