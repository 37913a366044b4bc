#include "lockstep/server/parameter_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/switches.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/server/local/local_run.h"
#include "lockstep/server/local/table_state.h"
#include "lockstep/server/option_checks.h"
#include "lockstep/server/record/recorded_program.h"
#include "lockstep/server/record/run_record.h"
#include "lockstep/server/shard_placement.h"
#include "lockstep/strategy/setup.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep {

namespace internal::inline server {

/// What lasts from one coordinate() to the next.
struct CoordinatorState {
  std::map<std::string, uint32_t> steps = {};  // by name: the kind
  std::vector<std::weak_ptr<TableState>> tables = {};
  ChiefCut begin = {};  // where the next run begins
  int64_t runs = 0;     // of the strategy below, as of then
  std::atomic<bool> is_under_way = false;
  std::unique_ptr<Coordinator> coordinator = nullptr;  // of the last run: a program may use it too late
  std::shared_ptr<RecordFile> record = nullptr;        // of all runs
  std::optional<ReplayRecord> replayed = std::nullopt;
  std::size_t next_replayed = 0;  // which of its runs is next
  bool has_stopped = false;       // the replay
};

}  // namespace internal::server

namespace {

ParameterServerOptions checked(ParameterServerOptions options) {
  const auto refuse = [](const std::string& fact, const char* remedy) { throw UsageError("LS-OPTION", fact, remedy); };
  if (options.workers < 1) refuse(fmt::format(".workers is {}", options.workers), "give 1 or more");
  if (options.servers < 1) refuse(fmt::format(".servers is {}", options.servers), "give 1 or more");
  if (options.staleness && *options.staleness < 0)
    refuse(fmt::format(".staleness is {}", *options.staleness), "give 0 or more, or nothing for no bound");
  internal::check_at_least(1, ".queue", "steps", options.queue.steps);
  internal::check_at_least(0, ".queue", "bytes", options.queue.bytes);
  internal::check_at_least(0, "ParameterServerStrategy", ".attempts", options.attempts);
  internal::check_at_least(0, ".timeouts", "step in ms", options.timeouts.step.count());
  if (options.staleness == 0 && options.wire == WireFormat::kBFloat16)
    refuse(".wire is kBFloat16 and .staleness is 0, which has the bits of a MirroredStrategy",
           "leave .wire out, or give another .staleness");
  if (!options.device.empty() && internal::parse_device(options.device).type != "cpu") {
    throw UsageError(
        "LS-DEVICE",
        fmt::format("device '{}' was asked for, and workers compute on the CPU only today", options.device),
        "write \"cpu\", or leave .device out");
  }
  const ClusterSpec cluster = options.cluster ? *options.cluster : resolve_cluster();
  if (cluster.jobs.contains("ps")) {
    refuse("a cluster with tasks of the job 'ps' was given, by " +
               (options.cluster ? std::string("the options") : cluster.source) +
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
    : Strategy(setup_of(checked(options))),
      options_(std::move(options)),
      gate_(std::make_shared<internal::StrategyGate>()),
      state_(std::make_unique<internal::CoordinatorState>()) {
  internal::StrategyAccess::set_gate(*this, gate_);
}

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
  internal::log(LogLevel::kWarning,
                fmt::format("table '{}': checkpoints do not have the rows of tables yet; read them by for_each() to "
                            "keep them",
                            options.name));
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
  chief.servers = 1;  // threads of a process have one memory, and one of them changes it
  chief.staleness = options_.staleness;
  chief.attempts = static_cast<uint32_t>(std::min<int64_t>(options_.attempts, std::numeric_limits<int32_t>::max()));
  chief.most_queued = static_cast<uint64_t>(options_.queue.steps);
  chief.most_argument_bytes = static_cast<uint64_t>(options_.queue.bytes);
  const std::optional<internal::ReplayedRun> replayed = begin_record();
  if (state_->has_stopped) return 0;
  if (replayed) chief = as_replayed(chief);
  internal::LocalRun run(*this, gate_, chief, state_->begin,
                         {.record = replayed ? nullptr : state_->record,
                          .replay = replayed ? &*replayed : nullptr,
                          .rounds_gradients = options_.wire == WireFormat::kBFloat16,
                          .step_limit = options_.timeouts.step});
  state_->coordinator.reset(new Coordinator(run));
  Coordinator& coordinator = *state_->coordinator;
  const auto end = [&] {  // all steps have been decided
    run.chief().end_record();
    run.catch_up();
    run.settle_batches();
    state_->begin = run.chief().next_begin();
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
    state_->has_stopped = run.chief().has_stopped();
    if (state_->has_stopped) return 0;
    throw;
  }
  end();
  return 0;
}

/// Opens the record of the run that begins, or gives the one that it repeats.
std::optional<internal::ReplayedRun> ParameterServerStrategy::begin_record() {
  const std::string_view replayed = internal::switch_text("LOCKSTEP_REPLAY");
  if (replayed.empty() && options_.record.empty()) return std::nullopt;
  std::vector<std::string> names(state_->steps.size());
  for (const auto& [name, kind] : state_->steps) names[kind] = name;
  internal::RecordedProgram program{.strategy = *this,
                                    .workers = options_.workers,
                                    .servers = options_.servers,
                                    .staleness = options_.staleness,
                                    .threads_per_replica = options_.threads_per_replica,
                                    .wire = internal::name_of(options_.wire),
                                    .counted = state_->begin.counted,
                                    .floor = state_->begin.floor,
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
    if (!state_->record) state_->record = std::make_shared<internal::RecordFile>(options_.record);
    state_->record->begin_run(text);
    return std::nullopt;
  }
  if (!state_->replayed) state_->replayed = internal::read_record(std::string(replayed));
  const std::vector<internal::RunEvents>& runs = state_->replayed->runs;
  if (state_->next_replayed == runs.size()) {
    if (state_->replayed->torn.empty()) {
      throw DivergenceError(
          "LS-REPLAY-DEPARTS",
          fmt::format("the program calls coordinate() more than {} times, as it did in the recorded run", runs.size()),
          "give the program of the recorded run");
    }
    state_->has_stopped = true;
    internal::log(LogLevel::kWarning, "replay: the record ends here, because its run was cut off; the replay stops");
    return std::nullopt;
  }
  const internal::RunEvents& run = runs[state_->next_replayed++];
  internal::require_same_program(run.program, text);
  return internal::ReplayedRun{.run = run, .functions = std::move(names), .until = step_to_stop_after()};
}

}  // namespace lockstep
