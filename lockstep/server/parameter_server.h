// Training with variables that live on parameter servers: workers run scheduled steps, each at its own pace.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/comm/timeouts.h"
#include "lockstep/core/tuning/wire_format.h"
#include "lockstep/data/distribute_options.h"
#include "lockstep/server/coordinator.h"
#include "lockstep/server/embedding.h"
#include "lockstep/server/partitioner.h"
#include "lockstep/server/shard_placement.h"
#include "lockstep/server/worker_streams.h"
#include "lockstep/strategy/served_state.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/step_runner.h"

namespace lockstep {

namespace internal::inline server {
class CoordinatedRun;
class StrategyGate;
struct ChiefOptions;
struct CoordinatorState;
struct RemoteSetup;
struct ReplayedRun;
}  // namespace internal::server

/// How much schedule() takes before it waits.
struct StepQueue {
  int64_t steps = 1'000'000;
  int64_t bytes = int64_t{64} << 20;  // of their arguments; one step's may be more

  bool operator==(const StepQueue&) const = default;
};

struct ParameterServerOptions {
  /// Who the tasks are; empty: what resolve_cluster() says. With tasks of the job "ps", this process is one of the
  /// tasks. Otherwise threads of this process are workers and servers.
  std::optional<ClusterSpec> cluster = std::nullopt;
  Partitioner partitioner = {};                          // into how many shards a variable is cut; empty: 1
  ServerPlacement placement = ServerPlacement::kInTurn;  // which server gets the next shard
  /// Nothing: a step begins when a worker is free, on the values that there are. k: a worker's c-th step sees at least
  /// the first c - k steps of each other worker, and all of its own. 0: W workers go in step, as W replicas, with the
  /// bits of a MirroredStrategy of W replicas.
  std::optional<int64_t> staleness = std::nullopt;
  /// A file that the order of steps, and which state each of them saw, is written to: `lockstep replay` repeats the run
  /// by it. It replaces a file that is there, when coordinate() is called for the first time, and no two strategies
  /// write one at a time. Empty: none. A UsageError where tasks are processes.
  std::string record = {};
  int64_t workers = 2;  // without a cluster
  int64_t servers = 1;  // without a cluster
  uint64_t seed = 0;    // of initial values, random streams and shuffling
  int threads_per_replica = 1;
  /// How tasks that are processes are connected: "tls", "tcp", or "auto", which is tcp where
  /// ClusterSpec::trusted_network says that nobody else can read or write, and otherwise tls.
  std::string engine = "auto";
  WorkerTimeouts timeouts = {};  // `step` is a UsageError where tasks are processes
  StepQueue queue = {};
  /// How often a step is given again whose worker was lost, or which ran longer than `timeouts.step`. Then it is closed
  /// with a PeerError (LS-PEER) that names step and workers, which is the first error.
  int64_t attempts = 3;
  /// How gradients travel to servers, which add them as float32. kBFloat16 rounds each of them to 8 significant bits;
  /// not in step. Part of what decides bits.
  WireFormat wire = WireFormat::kExact;
  std::string device = {};  // where a worker computes: "cpu" today
};

/// The program runs on all tasks: processes of a cluster with the jobs "chief", "worker" and "ps", or threads of one
/// process. Variables, modules and optimizers are made as with any strategy, and read, assigned, loaded and saved as
/// whole values. What changes values waits until the steps that were scheduled before have been decided. Members of
/// Strategy that let replicas meet (run, evaluate, reduce, gather, broadcast) are UsageErrors (LS-SCHEDULE).
///
/// A scheduled step counts once: all that it pushes is applied, or nothing is. docs/parameter-servers.md has the whole.
class ParameterServerStrategy final : public Strategy,
                                      public internal::StepRunnerSource,
                                      public internal::HasServedState {
 public:
  explicit ParameterServerStrategy(ParameterServerOptions options = {});
  ~ParameterServerStrategy() override;

  /// Workers of the run, W.
  int64_t num_workers() const { return options_.workers; }
  /// Each worker is one replica.
  int64_t num_replicas() const { return options_.workers; }
  /// Whether tasks of the run are processes, and this is one of them.
  bool has_processes() const;
  /// Where a variable's shards are: for each, in the order of the first axis, its rows and its server. Variables that
  /// are synchronised on read, and those of an UpdateRule that is not elementwise, stay whole: ask when the optimizers
  /// are there.
  std::vector<internal::Shard> servers_of(const Variable& variable) const;

  /// Names a function that workers call: fn(WorkerContext&, arguments...). A UsageError (LS-NAME-TAKEN) for a name that
  /// another step has. Several workers call it at the same time.
  template <class Fn>
  Step<std::decay_t<Fn>> step(const std::string& name, Fn&& fn) {
    auto kept = std::make_shared<std::decay_t<Fn>>(std::forward<Fn>(fn));
    internal::NamedStep named{name, [kept](WorkerContext& context, const internal::StepValues& values) {
                                return internal::call_with_values(*kept, context, values);
                              }};
    if constexpr (internal::StepParametersOf<std::decay_t<Fn>>::kAreBatch) {
      named.evaluate = internal::mean_of_part(
          [kept](WorkerContext& context, const Batch& part) { return internal::value_of_part(*kept, context, part); });
    }
    const uint32_t kind = name_step(std::move(named));
    return {name, kind, std::move(kept), gate_.get()};
  }
  using Strategy::step;

  /// A table of rows, which are made when they are first used. A UsageError (LS-NAME-TAKEN) for a name that another
  /// table has.
  Embedding make_embedding(const EmbeddingOptions& options);
  /// The rule of a table's rows: SGD, with momentum or without, Adagrad or Adam, which counts each row's own updates. A
  /// UsageError (LS-ROW-RULE) for another rule, and for a table that has one already. Without a rule, what is pushed to
  /// a table is dropped.
  template <class Options>
  RowsOptimizer make_optimizer(const Embedding& table, const Options& options) {
    static_assert(internal::kHasRule<Options>, "lockstep: make_optimizer takes torch::optim's options");
    return make_rows_optimizer(table, internal::RuleOptions(&options));
  }
  using Strategy::make_optimizer;

  /// Each worker's own stream: `fn(const InputContext&)` is called once on each worker that takes from it, and returns
  /// a Stream or a Dataset, whose elements are batches.
  template <class Fn>
  WorkerStreams distribute_to_workers(Fn fn) {
    return WorkerStreams(next_stream_++, options_.workers, [fn = std::move(fn)](const InputContext& context) {
      return internal::as_stream(fn(context));
    });
  }

  /// On the task of the job 'evaluator', coordinate() restores each new checkpoint of the strategy's CheckpointManagers
  /// into this strategy, and calls `fn` with it: fn(), fn(const RestoreInfo&), fn(const std::filesystem::path&), or
  /// with the path and the RestoreInfo. Only the newest one is read where several have come meanwhile, and always the
  /// last one. While `fn` runs, no manager removes that checkpoint. Functions are called in the order in which they
  /// were given, on the caller's thread of coordinate(), which throws what they throw. On all other tasks, and where
  /// there is no evaluator, nothing calls them. Call it before coordinate(); the managers must live as long as that
  /// runs.
  template <class Fn>
  void on_checkpoint(Fn&& fn) {
    using Path = const std::filesystem::path&;
    using Info = const RestoreInfo&;
    using Function = std::decay_t<Fn>;
    static_assert(std::is_invocable_v<Function&, Path, Info> || std::is_invocable_v<Function&, Info> ||
                      std::is_invocable_v<Function&, Path> || std::is_invocable_v<Function&>,
                  "lockstep: the function of on_checkpoint must be callable as fn(), fn(const RestoreInfo&), fn(const "
                  "std::filesystem::path&) or fn(path, info)");
    add_on_checkpoint([kept = std::make_shared<Function>(std::forward<Fn>(fn))](Path path, Info info) {
      if constexpr (std::is_invocable_v<Function&, Path, Info>) {
        (*kept)(path, info);
      } else if constexpr (std::is_invocable_v<Function&, Info>) {
        (*kept)(info);
      } else if constexpr (std::is_invocable_v<Function&, Path>) {
        (*kept)(path);
      } else if constexpr (std::is_invocable_v<Function&>) {
        (*kept)();
      }
    });
  }

  /// Runs `fn(Coordinator&)` on the chief while the other tasks serve, waits for all steps that it has scheduled, and
  /// returns the exit code of the program, 0. Throws what `fn` throws, and the first error that nobody has got; then
  /// all other steps are closed. One call at a time.
  ///
  /// A task that is another process serves until the chief's call has ended, and returns 0, or 75 where that has
  /// thrown. All tasks call it equally often, after they have made the same variables, tables, optimizers and steps in
  /// the same order: a task that differs gets a ClusterError (LS-CLUSTER-DIFFERS). A PeerError names a task that was
  /// lost: the chief for workers and servers, and a server for all.
  template <class Fn>
  int coordinate(Fn&& fn) {
    return coordinate_with([&](Coordinator& coordinator) { fn(coordinator); });
  }

 private:
  friend class internal::TrainedSteps;
  internal::ServedState& served_state() const override;
  /// How many scheduled steps make one step() of the strategy.
  int64_t parts() const;
  uint32_t name_step(internal::NamedStep step);
  RowsOptimizer make_rows_optimizer(const Embedding& table, const internal::RuleOptions& options);
  void add_on_checkpoint(std::function<void(const std::filesystem::path&, const RestoreInfo&)> fn);
  int coordinate_with(internal::FunctionRef<void(Coordinator&)> fn);
  std::unique_ptr<internal::StepRunner> make_step_runner(const internal::TrainerSetup& setup,
                                                         const internal::MetricList& metrics) override;
  void coordinate_threads(internal::ChiefOptions chief, internal::FunctionRef<void(Coordinator&)> fn);
  int coordinate_processes(internal::ChiefOptions chief, internal::FunctionRef<void(Coordinator&)> fn);
  void coordinate_run(internal::CoordinatedRun& run, internal::FunctionRef<void(Coordinator&)> fn);
  internal::RemoteSetup remote_setup(const internal::ChiefOptions& chief);
  std::vector<Variable> placed_variables() const;  // all that lie on servers by themselves
  std::vector<std::vector<internal::Shard>> place(const std::vector<Variable>& variables) const;
  std::optional<internal::ReplayedRun> begin_record();

  const ParameterServerOptions options_;
  const std::shared_ptr<internal::StrategyGate> gate_;
  const std::unique_ptr<internal::CoordinatorState> state_;
  int64_t next_stream_ = 0;
};

}  // namespace lockstep
