#include "lockstep/server/parameter_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/cluster/job_counts.h"
#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/coordinator_state.h"
#include "lockstep/server/evaluator.h"
#include "lockstep/server/local/local_run.h"
#include "lockstep/server/local/table_state.h"
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
  if (!options.record.empty()) refuse(".record is not supported yet", "leave it out");
  options.cluster = options.cluster ? *options.cluster : resolve_cluster();
  const ClusterSpec& cluster = *options.cluster;
  if (cluster.jobs.contains("ps")) internal::require_chief_and_workers(cluster);
  if (is_evaluator(options)) {  // connects to nobody, and has the variables of its checkpoints itself
    const auto workers = cluster.jobs.find("worker");
    if (workers != cluster.jobs.end()) options.workers = static_cast<int64_t>(workers->second.size());
  } else if (cluster.jobs.contains("ps")) {
    refuse("a cluster with tasks of the job 'ps' was given, by " +
               (cluster.source.empty() ? std::string("the options") : cluster.source) +
               ", and tasks that are processes are not supported yet",
           "start the program without it: then threads of this process are workers and servers");
  }
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
  state_->served = internal::served_by_threads(*this, gate_, *state_, options_.workers, parts());
}

internal::ServedState& ParameterServerStrategy::served_state() const { return *state_->served; }

int64_t ParameterServerStrategy::parts() const { return options_.staleness == 0 ? options_.workers : 1; }

ParameterServerStrategy::~ParameterServerStrategy() = default;

std::vector<internal::Shard> ParameterServerStrategy::servers_of(const Variable& variable) const {
  std::vector<internal::PlacedVariable> placed;
  std::size_t wanted = 0;
  bool is_here = false;
  for (const Variable& one : variables()) {
    if (one.state().is_slot()) continue;  // slots lie beside their variables
    if (&one.state() == &variable.state()) {
      wanted = placed.size();
      is_here = true;
    }
    placed.push_back({one.name(), one.sizes().vec(), one.dtype()});
  }
  if (!is_here) {
    throw UsageError("LS-OTHER-STRATEGY",
                     fmt::format("servers_of was given '{}', which is a slot or another strategy's", variable.name()),
                     "give a variable of this strategy; its slots lie beside it");
  }
  return internal::place_shards(placed, options_.servers, options_.partitioner, options_.placement)[wanted];
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
  auto table = std::make_shared<internal::TableState>(options, seed(), gate_);
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

uint32_t ParameterServerStrategy::name_step(const std::string& name) {
  const auto [found, is_new] = state_->steps.emplace(name, static_cast<uint32_t>(state_->steps.size()));
  if (is_new) return found->second;
  throw UsageError("LS-NAME-TAKEN", fmt::format("a second step named '{}' was made", name),
                   "give each step a name of its own");
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
  chief.servers = 1;  // threads of a process have one memory, and one of them changes it
  chief.staleness = options_.staleness;
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
  Coordinator coordinator(*run);
  const auto end = [&] {  // all steps have been decided
    run->catch_up();
    run->settle_batches();
    state_->begin = run->next_begin();
    state_->runs = Strategy::step();
  };
  try {
    fn(coordinator);
    coordinator.join();
  } catch (...) {
    run->chief().cancel();
    run->chief().drain();
    end();
    throw;
  }
  end();
  return 0;
}

}  // namespace lockstep
