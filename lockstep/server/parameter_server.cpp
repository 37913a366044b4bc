#include "lockstep/server/parameter_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/cluster/job_counts.h"
#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/comm/world.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/switches.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/coordinator_state.h"
#include "lockstep/server/evaluator.h"
#include "lockstep/server/local/local_run.h"
#include "lockstep/server/local/table_state.h"
#include "lockstep/server/option_checks.h"
#include "lockstep/server/record/recorded_program.h"
#include "lockstep/server/record/run_record.h"
#include "lockstep/server/record/run_replay.h"
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
  internal::check_at_least(1, ".queue", "steps", options.queue.steps);
  internal::check_at_least(0, ".queue", "bytes", options.queue.bytes);
  internal::check_at_least(0, "ParameterServerStrategy", ".attempts", options.attempts);
  const std::chrono::milliseconds limit = options.timeouts.step;
  if (limit.count() < 0 || limit > std::chrono::hours(365 * 24))
    refuse(fmt::format(".step of .timeouts is {} ms", limit.count()),
           "give one millisecond to 365 days, or 0 for none");
  if (options.staleness == 0 && options.wire == WireFormat::kBFloat16)
    refuse(".wire is kBFloat16 and .staleness is 0, which has the bits of a MirroredStrategy",
           "leave .wire out, or give another .staleness");
  if (!options.device.empty() && internal::parse_device(options.device).type != "cpu") {
    throw UsageError(
        "LS-DEVICE",
        fmt::format("device '{}' was asked for, and workers compute on the CPU only today", options.device),
        "write \"cpu\", or leave .device out");
  }
  options.cluster = options.cluster ? *options.cluster : resolve_cluster();
  const ClusterSpec& cluster = *options.cluster;
  const auto servers = cluster.jobs.find("ps");
  if (servers != cluster.jobs.end()) {
    internal::require_chief_and_workers(cluster);
    if (!internal::switch_text("LOCKSTEP_REPLAY").empty() && !is_evaluator(options)) {
      throw UsageError("LS-REPLAY-DIFFERS",
                       fmt::format("a recorded run is to be repeated, whose tasks are threads of one process, and this "
                                   "process is a task of the job '{}' of a cluster",
                                   cluster.job),
                       "start the program by lockstep replay without a cluster: without TF_CONFIG and LOCKSTEP_PS");
    }
    if (!options.record.empty())
      refuse(".record was given, and a run whose tasks are processes cannot be recorded yet",
             "leave .record out, or start the program without a cluster: then its tasks are threads");
    if (options.timeouts.step.count() > 0)
      refuse(".timeouts.step was given, and steps of tasks that are processes have no limit yet",
             "leave it out: a worker that is lost is noticed by .timeouts.lost");
  }
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

/// What a replay does otherwise: gives and waits are those of the record.
internal::ChiefOptions as_replayed(internal::ChiefOptions options) {
  constexpr uint32_t kAny = uint32_t{1} << 31;
  if (options.staleness != 0) options.staleness.reset();
  options.attempts = 0;
  options.window = kAny;
  options.most_behind = kAny;
  options.most_queued = kAny;
  return options;
}

std::optional<int64_t> step_to_stop_after() {
  const std::string_view text = internal::switch_text("LOCKSTEP_REPLAY_UNTIL");
  if (text.empty()) return std::nullopt;
  int64_t step = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error == std::errc() && end == text.data() + text.size() && step >= 0) return step;
  throw UsageError("LS-ENVIRONMENT", fmt::format("LOCKSTEP_REPLAY_UNTIL is '{}', which is no number of a step", text),
                   "set it to a number from 0, or unset it");
}

}  // namespace

ParameterServerStrategy::ParameterServerStrategy(ParameterServerOptions options)
    : Strategy(setup_of(options = checked(std::move(options)))),
      options_(std::move(options)),
      gate_(std::make_shared<internal::StrategyGate>()),
      state_(std::make_unique<internal::CoordinatorState>()) {
  internal::StrategyAccess::set_gate(*this, gate_);
  state_->own = std::make_unique<internal::OwnThings>(*this, gate_);
  state_->served = internal::served_by_threads(*this, gate_, *state_, options_.workers, parts());
}

internal::ServedState& ParameterServerStrategy::served_state() const { return *state_->served; }

bool ParameterServerStrategy::has_processes() const {
  return options_.cluster->jobs.contains("ps") && !is_evaluator(options_);
}

int64_t ParameterServerStrategy::parts() const { return options_.staleness == 0 ? options_.workers : 1; }

ParameterServerStrategy::~ParameterServerStrategy() {
  if (state_->has_stopped || std::uncaught_exceptions() > 0) return;
  if (!state_->replayed) {
    if (!internal::switch_text("LOCKSTEP_REPLAY").empty() && !has_processes()) {
      internal::log(LogLevel::kWarning,
                    "replay: the program has not called coordinate() of this strategy, and nothing was repeated");
    }
    return;
  }
  const std::size_t recorded = state_->replayed->runs.size();
  if (state_->next_replayed == recorded) return;
  internal::log(LogLevel::kWarning,
                fmt::format("replay: the record has {} runs, which calls of coordinate() and restores inside of it "
                            "begin, and the program has repeated {}",
                            recorded, state_->next_replayed));
}

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
  std::erase_if(all, [&](const Variable& one) {
    return one.state().is_slot() ||  // slots lie beside their variables
           state_->own->has(one.shared_state());
  });
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
  std::vector<std::string> data_sets;
  for (const auto& [deal, text] : internal::StrategyAccess::data_sets(*this)) {
    if (!state_->own->has(deal)) data_sets.push_back(text);
  }
  return {.strategy = *this,
          .gate = gate_,
          .cluster = *options_.cluster,
          .join = {.engine = options_.engine, .timeouts = options_.timeouts},
          .chief = chief,
          .steps = state_->steps,
          .catalog = internal::Catalog(std::move(variables), shards, std::move(tables)),
          .data_sets = std::move(data_sets),
          .trainers = state_->trainers,
          .owns_schedules = state_->own->has_schedules(),
          .batch_indexes = state_->batch_indexes,
          .rounds_gradients = options_.wire == WireFormat::kBFloat16};
}

std::unique_ptr<internal::StepRunner> ParameterServerStrategy::make_step_runner(const internal::TrainerSetup& setup,
                                                                                const internal::MetricList& metrics) {
  return internal::TrainedSteps::make(*this, setup, metrics);
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
  chief.attempts = static_cast<uint32_t>(std::min<int64_t>(options_.attempts, std::numeric_limits<int32_t>::max()));
  chief.most_queued = static_cast<uint64_t>(options_.queue.steps);
  chief.most_argument_bytes = static_cast<uint64_t>(options_.queue.bytes);
  if (has_processes()) return coordinate_processes(chief, fn);
  coordinate_threads(chief, fn);
  return 0;
}

void ParameterServerStrategy::coordinate_threads(internal::ChiefOptions chief,
                                                 internal::FunctionRef<void(Coordinator&)> fn) {
  chief.servers = 1;  // threads of a process have one memory, and one of them changes it
  std::optional<internal::LocalRun> run;
  const auto begin = [&] {  // a restore begins it anew, at the same place in memory; false where a replay has stopped
    const std::lock_guard<std::recursive_mutex> lock(state_->run_mutex);
    if (run) {
      run->chief().end_replay();
      run->chief().end_record();
    }
    const std::optional<internal::ReplayedRun> replayed = begin_record();
    if (state_->has_stopped) return false;
    run.reset();
    run.emplace(*this, gate_, replayed ? as_replayed(chief) : chief, state_->begin,
                internal::RunOptions{.record = replayed ? nullptr : state_->record,
                                     .replay = replayed ? &*replayed : nullptr,
                                     .rounds_gradients = options_.wire == WireFormat::kBFloat16,
                                     .step_limit = options_.timeouts.step});
    state_->run = &*run;
    return true;
  };
  if (!begin()) return;
  state_->restart = [&] {
    try {
      if (begin()) {
        state_->coordinator->chief_ = run->chief().shared_from_this();
        return;
      }
      run->chief().fail(std::make_exception_ptr(
          CancelledError("LS-REPLAY-STOP", "the record has nothing of the run after this restore",
                         "let this exception leave the function that coordinate() was given: it returns then")));
    } catch (...) {  // of a record: it must not go on with steps that it does not have
      if (!run) throw;
      run->chief().fail(std::current_exception());
    }
  };
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
  const std::shared_ptr<void> own = state_->own->scope();
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
  state_->coordinator.reset(new Coordinator(run));
  Coordinator& coordinator = *state_->coordinator;
  const auto end = [&] {  // all steps have been decided
    run.chief().end_record();
    run.finish();
    run.settle_batches();
    state_->begin = run.next_begin();
    state_->runs = Strategy::step();
  };
  try {
    fn(coordinator);
    coordinator.join();
    run.chief().end_replay();
  } catch (...) {
    run.chief().cancel();
    run.chief().drain();
    end();
    if (run.chief().has_stopped()) state_->has_stopped = true;
    if (state_->has_stopped) return;
    throw;
  }
  end();
  if (state_->record) run.chief().require_not_failed();  // the record may lack its end
}

/// Opens the record of the run that begins, or gives the one that it repeats.
std::optional<internal::ReplayedRun> ParameterServerStrategy::begin_record() {
  const std::string_view replayed = internal::switch_text("LOCKSTEP_REPLAY");
  if (state_->has_stopped || (replayed.empty() && options_.record.empty())) return std::nullopt;
  std::vector<std::string> names;
  for (const internal::NamedStep& one : state_->steps) names.push_back(one.name);
  internal::RecordedProgram program{.strategy = *this,
                                    .workers = options_.workers,
                                    .servers = options_.servers,
                                    .staleness = options_.staleness,
                                    .threads_per_replica = options_.threads_per_replica,
                                    .wire = internal::name_of(options_.wire),
                                    .counted = state_->begin.chief.counted,
                                    .floor = state_->begin.chief.floor,
                                    .above = internal::decided_above(state_->begin.chief),
                                    .steps = names};
  std::vector<std::shared_ptr<internal::TableState>> tables;
  for (const auto& one : state_->tables) {
    if (auto table = one.lock()) tables.push_back(std::move(table));
  }
  for (const auto& one : tables) program.tables.push_back(one.get());
  std::string text;
  {
    const internal::GateHold hold(gate_, "Variable::read");
    text = internal::text_of(program);
  }
  if (replayed.empty()) {
    if (!state_->record) {
      state_->record = std::make_shared<internal::RecordFile>(options_.record);
      if (state_->record->replaces()) {
        internal::log(
            LogLevel::kWarning,
            fmt::format("the record '{}' of an earlier run is replaced; copy such a file before the next start to "
                        "replay it",
                        options_.record));
      }
    }
    state_->record->begin_run(text);
    return std::nullopt;
  }
  if (!state_->replayed) state_->replayed = internal::read_record(std::string(replayed));
  const std::vector<internal::RunEvents>& runs = state_->replayed->runs;
  if (state_->next_replayed == runs.size()) {
    if (state_->replayed->torn.empty()) {
      throw DivergenceError(
          "LS-REPLAY-DEPARTS",
          fmt::format("the program begins run {}, by coordinate() or by a restore inside of it, and its record has {}",
                      runs.size() + 1, runs.size()),
          "give the program of the recorded run");
    }
    state_->has_stopped = true;
    internal::log(LogLevel::kWarning, "replay: the record ends here, because its run was cut off; the replay stops");
    return std::nullopt;
  }
  const internal::RunEvents& run = runs[state_->next_replayed++];
  internal::require_same_program(run.program, text);
  internal::require_workers(run, options_.workers);
  return internal::ReplayedRun{.run = run, .functions = std::move(names), .until = step_to_stop_after()};
}

}  // namespace lockstep
