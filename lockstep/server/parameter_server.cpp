#include "lockstep/server/parameter_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/local/local_run.h"
#include "lockstep/server/local/table_state.h"
#include "lockstep/server/remote/chief_process.h"
#include "lockstep/server/remote/server_process.h"
#include "lockstep/server/remote/worker_process.h"
#include "lockstep/server/shard_placement.h"
#include "lockstep/strategy/setup.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep {

namespace internal::inline server {

/// What lasts from one coordinate() to the next.
struct CoordinatorState {
  std::vector<NamedStep> steps = {};  // by kind
  std::vector<std::weak_ptr<TableState>> tables = {};
  ChiefCut begin = {};  // where the next run begins
  int64_t runs = 0;     // of the strategy below, as of then
  std::atomic<bool> is_under_way = false;
};

}  // namespace internal::server

namespace {

ParameterServerOptions checked(ParameterServerOptions options) {
  const auto refuse = [](const std::string& fact, const char* remedy) { throw UsageError("LS-OPTION", fact, remedy); };
  if (options.workers < 1) refuse(fmt::format(".workers is {}", options.workers), "give 1 or more");
  if (options.servers < 1) refuse(fmt::format(".servers is {}", options.servers), "give 1 or more");
  if (options.staleness && *options.staleness < 0)
    refuse(fmt::format(".staleness is {}", *options.staleness), "give 0 or more, or nothing for no bound");
  if (!options.record.empty()) refuse(".record is not supported yet", "leave it out");
  ClusterSpec cluster = options.cluster ? *options.cluster : resolve_cluster();
  const auto servers = cluster.jobs.find("ps");
  if (servers == cluster.jobs.end()) {
    options.cluster.reset();  // all tasks are threads of this process
    return options;
  }
  const auto workers = cluster.jobs.find("worker");
  options.workers = workers == cluster.jobs.end() ? 1 : static_cast<int64_t>(workers->second.size());
  options.servers = static_cast<int64_t>(servers->second.size());
  options.cluster = std::move(cluster);
  return options;
}

StrategySetup setup_of(const ParameterServerOptions& options) {
  // In step, replica i has the gradients of part i; otherwise one replica has those of a step.
  const int64_t replicas = options.staleness == 0 ? options.workers : 1;
  return {.name = "ParameterServerStrategy",
          .topology = std::make_shared<HostTopology>(std::vector<std::string>{"cpu:0"}, replicas),
          .seed = options.seed,
          .threads_per_replica = options.threads_per_replica};
}

}  // namespace

ParameterServerStrategy::ParameterServerStrategy(ParameterServerOptions options)
    : Strategy(setup_of(options = checked(std::move(options)))),
      options_(std::move(options)),
      gate_(std::make_shared<internal::StrategyGate>()),
      state_(std::make_unique<internal::CoordinatorState>()) {
  internal::StrategyAccess::set_gate(*this, gate_);
}

ParameterServerStrategy::~ParameterServerStrategy() = default;

std::vector<std::vector<internal::Shard>> ParameterServerStrategy::place(const std::vector<Variable>& variables) const {
  std::vector<internal::PlacedVariable> placed;
  for (const Variable& one : variables) placed.push_back({one.name(), one.sizes().vec(), one.dtype()});
  return internal::place_shards(placed, options_.servers, options_.partitioner, options_.placement);
}

std::vector<Variable> ParameterServerStrategy::placed_variables() const {
  std::vector<Variable> all = variables();
  std::erase_if(all, [](const Variable& one) { return one.state().is_slot(); });  // slots lie beside their variables
  return all;
}

std::vector<internal::Shard> ParameterServerStrategy::servers_of(const Variable& variable) const {
  const std::vector<Variable> all = placed_variables();
  const auto found = std::ranges::find_if(all, [&](const Variable& one) { return &one.state() == &variable.state(); });
  if (found == all.end()) {
    throw UsageError("LS-OTHER-STRATEGY",
                     fmt::format("servers_of was given '{}', which is a slot or another strategy's", variable.name()),
                     "give a variable of this strategy; its slots lie beside it");
  }
  return place(all)[static_cast<std::size_t>(found - all.begin())];
}

Embedding ParameterServerStrategy::make_embedding(const EmbeddingOptions& options) {
  internal::check(options);
  const internal::GateHold hold(gate_, "ParameterServerStrategy::make_embedding");
  std::erase_if(state_->tables, [](const auto& one) { return one.expired(); });
  for (const auto& one : state_->tables) {
    const auto table = one.lock();
    if (!table || table->table.options().name != options.name) continue;
    throw UsageError("LS-NAME-TAKEN", fmt::format("a second table named '{}' was made", options.name),
                     "give each table a name of its own");
  }
  internal::log(LogLevel::kWarning,
                fmt::format("table '{}': checkpoints do not have the rows of tables yet; read them by for_each() to "
                            "keep them",
                            options.name));
  const bool is_server = options_.cluster && options_.cluster->job == "ps";
  auto table = std::make_shared<internal::TableState>(options, seed(), gate_, is_server ? options_.cluster->task : 0,
                                                      is_server ? options_.servers : 1);
  state_->tables.push_back(table);
  return Embedding(std::move(table));
}

RowsOptimizer ParameterServerStrategy::make_rows_optimizer(const Embedding& table,
                                                           const internal::RuleOptions& options) {
  const internal::GateHold hold(gate_, "Strategy::make_optimizer");
  internal::TableState& state = *table.state();
  if (state.rule) {
    throw UsageError("LS-ROW-RULE", fmt::format("table '{}' has an optimizer already", table.name()),
                     "make one optimizer for each table");
  }
  std::shared_ptr<internal::GroupRule> rule =
      std::visit([](const auto* one) { return internal::make_rule(*one); }, options);
  state.table.use(std::make_shared<internal::RowRule>(rule, table.name()));
  state.rule = std::move(rule);
  return RowsOptimizer(table.state());
}

uint32_t ParameterServerStrategy::name_step(internal::NamedStep step) {
  const auto kind = static_cast<uint32_t>(state_->steps.size());
  if (std::ranges::find(state_->steps, step.name, &internal::NamedStep::name) != state_->steps.end()) {
    throw UsageError("LS-NAME-TAKEN", fmt::format("a second step named '{}' was made", step.name),
                     "give each step a name of its own");
  }
  state_->steps.push_back(std::move(step));
  return kind;
}

internal::RemoteSetup ParameterServerStrategy::remote_setup(const internal::ChiefOptions& chief) {
  const internal::GateHold hold(gate_, "Strategy::variables");
  std::vector<Variable> variables = placed_variables();
  std::vector<std::vector<internal::Shard>> shards = place(variables);
  std::vector<std::shared_ptr<internal::TableState>> tables;
  for (const auto& one : state_->tables) {
    if (auto table = one.lock()) tables.push_back(std::move(table));
  }
  return {.strategy = *this,
          .gate = gate_,
          .cluster = *options_.cluster,
          .join = {.engine = options_.engine, .timeouts = options_.timeouts},
          .chief = chief,
          .steps = state_->steps,
          .catalog = internal::Catalog(std::move(variables), shards, std::move(tables))};
}

int ParameterServerStrategy::coordinate_with(internal::FunctionRef<void(Coordinator&)> fn) {
  if (state_->is_under_way.exchange(true)) {
    throw UsageError("LS-NESTED-CALL", "coordinate was called while another coordinate of the strategy runs",
                     "use the Coordinator that the outer call has given");
  }
  struct Ended {
    std::atomic<bool>& flag;
    ~Ended() { flag = false; }
  } const ended{state_->is_under_way};
  const int64_t rounds = Strategy::step();
  const int64_t parts = options_.staleness == 0 ? options_.workers : 1;
  if (rounds != state_->runs) state_->begin = {.counted = rounds * parts, .floor = rounds * parts};  // after a restore
  internal::ChiefOptions chief;
  chief.workers = static_cast<int32_t>(options_.workers);
  chief.staleness = options_.staleness;
  if (!options_.cluster) {
    chief.servers = 1;  // threads of a process have one memory, and one of them changes it
    internal::LocalRun run(*this, gate_, chief, state_->begin);
    coordinate_run(run, fn);
    return 0;
  }
  if (options_.cluster->job == "evaluator") {
    throw UsageError("LS-CLUSTER-NO-WORKER", "coordinate was called by the evaluator, which takes no part in the run",
                     "let the evaluator read checkpoints, and call coordinate on all other tasks");
  }
  chief.servers = static_cast<int32_t>(options_.servers);
  chief.squares = options_.staleness == 0 && options_.servers > 1;
  const internal::RemoteSetup setup = remote_setup(chief);
  const internal::TaskPlace place = internal::place_of_task(setup.cluster, setup.join);
  if (setup.cluster.job == "worker") return internal::WorkerProcess(setup, place).serve();
  if (setup.cluster.job == "ps") return internal::ServerProcess(setup, place).serve();
  internal::ChiefProcess run(setup, place, state_->begin);
  coordinate_run(run, fn);
  run.end(0);
  return 0;
}

void ParameterServerStrategy::coordinate_run(internal::CoordinatedRun& run,
                                             internal::FunctionRef<void(Coordinator&)> fn) {
  Coordinator coordinator(run);
  const auto end = [&] {  // all steps have been decided
    run.finish();
    run.settle_batches();
    state_->begin = run.chief().next_begin();
    state_->runs = Strategy::step();
  };
  try {
    fn(coordinator);
    coordinator.join();
  } catch (...) {
    run.chief().cancel();
    run.chief().drain();
    end();
    throw;
  }
  end();
}

}  // namespace lockstep
