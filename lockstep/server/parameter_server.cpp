#include "lockstep/server/parameter_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/cluster/job_counts.h"
#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/comm/world.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/coordinator_state.h"
#include "lockstep/server/evaluator.h"
#include "lockstep/server/local/local_run.h"
#include "lockstep/server/local/table_state.h"
#include "lockstep/server/remote/chief_process.h"
#include "lockstep/server/remote/server_process.h"
#include "lockstep/server/remote/worker_process.h"
#include "lockstep/server/shard_placement.h"
#include "lockstep/server/trained_steps.h"
#include "lockstep/strategy/setup.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep {

namespace {

bool is_evaluator(const ParameterServerOptions& options) { return options.cluster->job == "evaluator"; }

ParameterServerOptions checked(ParameterServerOptions options) {
  const auto refuse = [](const std::string& fact, const char* remedy) { throw UsageError("LS-OPTION", fact, remedy); };
  if (options.workers < 1) refuse(fmt::format(".workers is {}", options.workers), "give 1 or more");
  if (options.servers < 1) refuse(fmt::format(".servers is {}", options.servers), "give 1 or more");
  if (options.staleness && *options.staleness < 0)
    refuse(fmt::format(".staleness is {}", *options.staleness), "give 0 or more, or nothing for no bound");
  if (options.engine != "auto" && options.engine != "tls" && options.engine != "tcp")
    refuse(fmt::format(".engine is '{}'", options.engine), "write \"auto\", \"tls\" or \"tcp\"");
  if (!options.record.empty()) refuse(".record is not supported yet", "leave it out");
  options.cluster = options.cluster ? *options.cluster : resolve_cluster();
  const ClusterSpec& cluster = *options.cluster;
  const auto servers = cluster.jobs.find("ps");
  if (servers != cluster.jobs.end()) internal::require_chief_and_workers(cluster);
  if (servers == cluster.jobs.end() && !is_evaluator(options)) return options;
  const auto workers = cluster.jobs.find("worker");
  if (workers != cluster.jobs.end()) options.workers = static_cast<int64_t>(workers->second.size());
  if (servers != cluster.jobs.end()) options.servers = static_cast<int64_t>(servers->second.size());
  return options;
}

StrategySetup setup_of(const ParameterServerOptions& options) {
  // In step, replica i has the gradients of part i; otherwise one replica has those of a step.
  const int64_t replicas = options.staleness == 0 ? options.workers : 1;
  // A task of a cluster has a strategy of its own, and is not alone: coordinate() brings the tasks together.
  const bool is_task = options.cluster->jobs.contains("ps") || is_evaluator(options);
  return {.name = "ParameterServerStrategy",
          .topology = std::make_shared<HostTopology>(std::vector<std::string>{"cpu:0"}, replicas),
          .world = is_task ? internal::one_worker() : nullptr,
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
  state_->served = internal::served_by_threads(*this, gate_, *state_, options_.workers, parts());
}

internal::ServedState& ParameterServerStrategy::served_state() const { return *state_->served; }

bool ParameterServerStrategy::has_processes() const {
  return options_.cluster->jobs.contains("ps") && !is_evaluator(options_);
}

int64_t ParameterServerStrategy::parts() const { return options_.staleness == 0 ? options_.workers : 1; }

ParameterServerStrategy::~ParameterServerStrategy() = default;

std::vector<std::vector<internal::Shard>> ParameterServerStrategy::place(const std::vector<Variable>& variables) const {
  // A rule that takes whole variables needs all of one in one place, and a buffer may grow.
  std::set<const internal::VariableState*> whole;
  for (const Optimizer& one : internal::StrategyAccess::optimizers(*this)) {
    const internal::OptimizerState& state = one.shared_state();
    for (std::size_t i = 0; i < state.variables().size(); ++i) {
      const auto own = state.counts().rule_of(i).own();
      if (own && !own->elementwise()) whole.insert(state.variables()[i].get());
    }
  }
  std::vector<internal::PlacedVariable> placed;
  for (const Variable& one : variables) {
    const bool stays_whole = !one.state().on_write() || whole.contains(&one.state());
    placed.push_back({one.name(), one.sizes().vec(), one.dtype(), stays_whole});
  }
  return internal::place_shards(placed, options_.servers, options_.partitioner, options_.placement);
}

std::vector<Variable> ParameterServerStrategy::placed_variables() const {
  std::vector<Variable> all = variables();
  std::erase_if(all, [](const Variable& one) { return one.state().is_slot(); });  // slots lie beside their variables
  return all;
}

std::vector<internal::Shard> ParameterServerStrategy::servers_of(const Variable& variable) const {
  const internal::GateHold hold(gate_, "Strategy::variables");
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
  const bool is_server = has_processes() && options_.cluster->job == "ps";
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
          .catalog = internal::Catalog(std::move(variables), shards, std::move(tables)),
          .batch_indexes = state_->batch_indexes};
}

std::unique_ptr<internal::StepRunner> ParameterServerStrategy::make_step_runner(const internal::TrainerSetup& setup) {
  return internal::TrainedSteps::make(*this, setup);
}

void ParameterServerStrategy::add_on_checkpoint(internal::OnCheckpoint fn) {
  const internal::GateHold hold(gate_, "ParameterServerStrategy::on_checkpoint");
  state_->on_checkpoint.push_back(std::move(fn));
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
  if (is_evaluator(options_)) return internal::serve_as_evaluator(*this, state_->on_checkpoint);
  if (!state_->on_checkpoint.empty() && options_.cluster->source == "alone") {
    internal::log(LogLevel::kInfo,
                  "nothing calls the functions of on_checkpoint: there is no task of the job 'evaluator'");
  }
  const int64_t rounds = Strategy::step();
  if (rounds != state_->runs) state_->begin = internal::begin_of_step(rounds, parts());  // the program has set it
  internal::ChiefOptions chief;
  chief.workers = static_cast<int32_t>(options_.workers);
  chief.staleness = options_.staleness;
  if (has_processes()) return coordinate_processes(chief, fn);
  coordinate_threads(chief, fn);
  return 0;
}

void ParameterServerStrategy::coordinate_threads(internal::ChiefOptions chief,
                                                 internal::FunctionRef<void(Coordinator&)> fn) {
  chief.servers = 1;  // threads of a process have one memory, and one of them changes it
  std::optional<internal::LocalRun> run;
  const auto begin = [&] {  // a restore begins it anew, at the same place in memory
    const std::lock_guard<std::recursive_mutex> lock(state_->run_mutex);
    run.reset();
    run.emplace(*this, gate_, chief, state_->begin);
    state_->run = &*run;
  };
  begin();
  state_->restart = begin;
  struct Over {
    internal::CoordinatorState& state;
    ~Over() {
      const std::lock_guard<std::recursive_mutex> lock(state.run_mutex);
      state.run = nullptr;
      state.restart = {};
    }
  } const over{*state_};
  coordinate_run(*run, fn);
}

int ParameterServerStrategy::coordinate_processes(internal::ChiefOptions chief,
                                                  internal::FunctionRef<void(Coordinator&)> fn) {
  chief.servers = static_cast<int32_t>(options_.servers);
  chief.squares = options_.staleness == 0 && options_.servers > 1;
  const internal::RemoteSetup setup = remote_setup(chief);
  const internal::TaskPlace place = internal::place_of_task(setup.cluster, setup.join);
  if (setup.cluster.job == "worker") return internal::WorkerProcess(setup, place).serve();
  if (setup.cluster.job == "ps") return internal::ServerProcess(setup, place).serve();
  internal::ChiefProcess run(setup, place, state_->begin.chief);
  struct UnderWay {
    internal::CoordinatorState& state;
    UnderWay(internal::CoordinatorState& its_state, internal::CoordinatedRun& its_run) : state(its_state) {
      const std::lock_guard<std::recursive_mutex> lock(state.run_mutex);
      state.processes = &its_run;
    }
    ~UnderWay() {
      const std::lock_guard<std::recursive_mutex> lock(state.run_mutex);
      state.processes = nullptr;
    }
  } const under_way(*state_, run);
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
    state_->begin = run.next_begin();
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
