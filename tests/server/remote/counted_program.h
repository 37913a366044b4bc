// A program of parameter servers whose every step counts itself in whole numbers, in each kind of state that servers
// have, so that its chief can tell at the end whether each step counted once on all servers, or on none.
#pragma once

#include <fmt/format.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/core/error.h"
#include "lockstep/data/dataset.h"
#include "lockstep/server/parameter_server.h"
#include "lockstep/strategy/metrics.h"

namespace lockstep::testing {

/// Something counted twice, or not on all servers.
class NotExact : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct CountedOptions {
  int64_t steps = 40;                    // that are to count; in step, whole rounds
  int64_t save_every = 10;               // steps; 0: nothing is saved
  int64_t chunk = 4;                     // steps that are scheduled at once; in step, whole rounds
  bool none_closes = true;               // a step that was reported as closed is a mistake
  std::chrono::microseconds pause = {};  // of each step
  std::filesystem::path folder = {};     // of checkpoints
  std::function<void(int64_t)> begins = [](int64_t /*steps*/) {};  // is told how many steps count at the begin
};

/// What the chief has seen.
struct CountedResult {
  int64_t began_at = 0;  // how many steps the checkpoint had that the run began with
  int64_t counted = 0;   // steps of this run
  int64_t closed = 0;    // steps of this run that were reported as closed
};

/// The state of the program, which all tasks make, and what its steps do. Step n
/// - sets column n of `seen`, of which each server has a row;
/// - adds a number of its own to `total`, of which each server has an element;
/// - has a gradient of -1 for `slotted`, whose momentum of 1 makes k (k + 1) / 2 of k steps that count;
/// - pushes four rows of its own to the table `rows`, on servers that their hash decides, and one that it shares with
///   other steps, twice;
/// - and does the same with the table `slotted rows`, whose momentum of 1 shows how often a shared row was pushed.
/// At the end an evaluation counts samples in a metric, part by part.
class CountedProgram {
 public:
  /// The options have a cluster.
  CountedProgram(ParameterServerOptions options, CountedOptions counted)
      : counted_(std::move(counted)),
        is_chief_(options.cluster->job == "chief"),
        servers_(servers_of(options)),
        rounds_(options.staleness == 0),
        columns_(counted_.steps + counted_.steps / 4 + 100),
        strategy_(with_shards(std::move(options), servers_)),
        seen_(strategy_.make_variable(torch::zeros({servers_, columns_}), {.name = "seen", .trainable = false})),
        total_(
            strategy_.make_variable(torch::zeros({servers_}, torch::kDouble), {.name = "total", .trainable = false})),
        slotted_(strategy_.make_variable(torch::zeros({servers_}), {.name = "slotted"})),
        optimizer_(strategy_.make_optimizer({slotted_}, torch::optim::SGDOptions(1).momentum(1))),
        rows_(strategy_.make_embedding({.name = "rows", .dim = 1, .initial = 0.0, .dtype = torch::kDouble})),
        rows_optimizer_(strategy_.make_optimizer(rows_, torch::optim::SGDOptions(1))),
        slotted_rows_(strategy_.make_embedding({.name = "slotted rows", .dim = 2, .initial = 0.0})),
        slotted_rows_optimizer_(strategy_.make_optimizer(slotted_rows_, torch::optim::SGDOptions(1).momentum(1))),
        samples_(strategy_.distribute(data::from_tensors(torch::zeros({kSamples, 1}), torch::arange(kSamples)),
                                      {.global_batch = strategy_.num_workers()})),
        ids_(strategy_, "ids"),
        step_(strategy_.step("count", std::function([this](WorkerContext& ctx) { return count(ctx); }))),
        judge_(strategy_.step("judge", std::function([this](WorkerContext& ctx, const Batch& part) {
                                ids_.update(ctx, part.ids.to(torch::kDouble));
                                return slotted_.value(ctx)[0].to(torch::kDouble);
                              }))) {}

  /// On the chief it restores the newest checkpoint, lets steps count until all do, and checks all state, where it
  /// throws NotExact. On other tasks it serves.
  int coordinate(CountedResult& result) {
    Checkpoint checkpoint(strategy_);
    std::optional<CheckpointManager> manager;
    if (is_chief_ && !counted_.folder.empty()) {
      manager.emplace(checkpoint, CheckpointManagerOptions{.directory = counted_.folder});
      manager->restore_latest();
    }
    return strategy_.coordinate([&](Coordinator& coordinator) {
      result.began_at = coordinator.steps();
      counted_.begins(result.began_at);
      schedule_all(coordinator, manager, result);
      check(coordinator, result);
    });
  }

 private:
  static int64_t servers_of(const ParameterServerOptions& options) {
    const auto found = options.cluster->jobs.find("ps");
    return found == options.cluster->jobs.end() ? 1 : static_cast<int64_t>(found->second.size());
  }
  static ParameterServerOptions with_shards(ParameterServerOptions options, int64_t servers) {
    options.partitioner = fixed_shards_partitioner(servers);
    return options;
  }
  static double own_number(int64_t step) { return static_cast<double>(1 + step * 7919 % 1009); }
  static constexpr int64_t kOwnRows = 4;
  static constexpr int64_t kSharedRows = 5;
  static constexpr int64_t kSamples = 24;

  int64_t count(WorkerContext& ctx) {
    const int64_t n = ctx.step();
    if (n >= columns_) throw std::runtime_error(fmt::format("step {} has no column", n));
    const auto own = torch::arange(kOwnRows) + n * kOwnRows;
    const auto shared = torch::full({2}, -1 - n % kSharedRows, torch::kLong);
    const auto ids = torch::cat({own, shared});
    if (counted_.pause.count() > 0) std::this_thread::sleep_for(counted_.pause);
    (-(slotted_.value(ctx).sum() + rows_.look_up(ctx, ids).sum() +
       slotted_rows_.look_up(ctx, ids.narrow(0, 0, kOwnRows + 1)).sum()))
        .backward();
    auto column = torch::zeros({servers_, columns_});
    column.select(1, n).fill_(1);
    seen_.assign_add(ctx, column);
    total_.assign_add(ctx, torch::full({servers_}, own_number(n), torch::kDouble));
    ctx.push({.loss_scaled_by_hand = true});
    return n;
  }

  void schedule_all(Coordinator& coordinator, std::optional<CheckpointManager>& manager, CountedResult& result) {
    std::deque<RemoteValue<int64_t>> open;
    int64_t failures = 0;  // one after the other
    int64_t next_save = result.began_at + counted_.save_every;
    // The first error of a step comes from any call, and closes all steps that do not count yet. Of a run that has
    // failed no call returns.
    const auto attempt = [&](const auto& call) {
      try {
        call();
        failures = 0;
        return true;
      } catch (const Error&) {
        if (++failures > 2 * counted_.chunk + 4) throw;
        return false;
      }
    };
    const auto resolve = [&](int64_t keep) {
      while (static_cast<int64_t>(open.size()) > keep) {
        const bool counts = attempt([&] { own_.push_back(open.front().get()); });
        open.pop_front();
        ++(counts ? result.counted : result.closed);
      }
    };
    while (true) {
      const int64_t left = counted_.steps - result.began_at - result.counted - static_cast<int64_t>(open.size());
      if (left == 0 && open.empty()) break;
      for (int64_t k = 0; k < std::min(left, counted_.chunk); ++k) {
        while (!attempt([&] { open.push_back(coordinator.schedule(step_)); })) {
        }
      }
      resolve(left > counted_.chunk ? counted_.chunk : 0);
      if (!manager || counted_.save_every == 0 || result.began_at + result.counted < next_save) continue;
      next_save += counted_.save_every;
      attempt([&] { manager->save(); });  // the steps go on
      attempt([&] { require_whole_columns(seen_.read()); });
    }
    while (!attempt([&] { coordinator.join(); })) {
    }
  }

  static void require(bool holds, const std::string& what) {
    if (!holds) throw NotExact(what);
  }

  static void require_whole_columns(const torch::Tensor& seen) {
    const auto first = seen.select(0, 0);
    require(seen.eq(first).all().item<bool>(), fmt::format("servers have seen different steps: {}", text_of(seen)));
    require(first.eq(0).logical_or(first.eq(1)).all().item<bool>(),
            fmt::format("a step counted more than once: {}", text_of(first)));
  }
  static std::string text_of(const torch::Tensor& tensor) {
    std::string text;
    const auto flat = tensor.to(torch::kDouble).contiguous().view(-1);
    for (int64_t i = 0; i < flat.numel(); ++i) text += fmt::format("{} ", flat.data_ptr<double>()[i]);
    return text;
  }

  /// Nothing is under way.
  void check(Coordinator& coordinator, const CountedResult& result) {
    const auto seen = seen_.read();
    require_whole_columns(seen);
    const auto first = seen.select(0, 0);
    const auto numbers = first.nonzero().view(-1);  // of the steps that count
    const int64_t steps = numbers.numel();
    require(steps == coordinator.steps(),
            fmt::format("servers have {} steps, and the chief has {}", steps, coordinator.steps()));
    require(steps == result.began_at + result.counted,
            fmt::format("{} steps count; {} did at the begin, and the results of {} have come", steps, result.began_at,
                        result.counted));
    std::vector<int64_t> own = own_;
    std::sort(own.begin(), own.end());
    require(std::adjacent_find(own.begin(), own.end()) == own.end(), "two steps had the same number");
    for (const int64_t n : own) require(first[n].item<bool>(), fmt::format("step {} gave a result and is lost", n));
    if (counted_.none_closes) {
      require(result.closed == 0, fmt::format("{} steps were closed", result.closed));
      require(numbers.equal(torch::arange(steps)), fmt::format("a step is missing: {}", text_of(first)));
    }
    double total = 0;
    auto shared = torch::zeros({kSharedRows}, torch::kDouble);
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t n = numbers[i].item<int64_t>();
      total += own_number(n);
      shared[n % kSharedRows] += 1;
    }
    require_equal("total", total_.read(), torch::full({servers_}, total, torch::kDouble));
    const double updates = rounds_ ? static_cast<double>(steps) / parts() : static_cast<double>(steps);
    require_equal("slotted", slotted_.read(),
                  torch::full({servers_}, updates * (updates + 1) / 2 * (rounds_ ? parts() : 1)));
    const double state = coordinator.evaluate(samples_, judge_).item<double>();
    require(
        state == slotted_.read()[0].item<double>() && ids_.count() == kSamples && ids_.result() == (kSamples - 1) / 2.0,
        fmt::format("an evaluation saw {}, and its metric has {} samples and a mean of {}", state, ids_.count(),
                    ids_.result()));
    const auto own_ids = torch::arange(columns_ * kOwnRows);
    const auto expected = first.to(torch::kDouble).view({columns_, 1}).expand({columns_, kOwnRows}).reshape({-1, 1});
    const auto shared_ids = -1 - torch::arange(kSharedRows);
    require_equal("rows of steps", rows_.read(own_ids), expected);
    require_equal("shared rows", rows_.read(shared_ids), 2 * shared.view({kSharedRows, 1}));
    require_equal("rows of steps, with slots", slotted_rows_.read(own_ids), expected.expand({-1, 2}));
    require_equal("shared rows, with slots", slotted_rows_.read(shared_ids),
                  (shared * (shared + 1) / 2).view({kSharedRows, 1}).expand({-1, 2}));
    const int64_t kept = kOwnRows * steps + shared.gt(0).sum().item<int64_t>();
    require(rows_.size() == kept && slotted_rows_.size() == kept,
            fmt::format("the tables have {} and {} rows, in place of {}", rows_.size(), slotted_rows_.size(), kept));
  }
  double parts() const { return static_cast<double>(strategy_.num_workers()); }

  static void require_equal(const char* what, const torch::Tensor& is, const torch::Tensor& should_be) {
    const auto differs = is.to(torch::kDouble).ne(should_be.to(torch::kDouble));
    if (!differs.any().item<bool>()) return;
    const auto where = differs.view(-1).nonzero()[0].item<int64_t>();
    throw NotExact(fmt::format("{} differ: {} are wrong, the first is {}, with {} in place of {}", what,
                               differs.sum().item<int64_t>(), where, is.reshape(-1)[where].item<double>(),
                               should_be.reshape(-1)[where].item<double>()));
  }

  const CountedOptions counted_;
  const bool is_chief_;
  const int64_t servers_;
  const bool rounds_;
  const int64_t columns_;
  ParameterServerStrategy strategy_;
  const Variable seen_;
  const Variable total_;
  const Variable slotted_;
  const Optimizer optimizer_;
  const Embedding rows_;
  const RowsOptimizer rows_optimizer_;
  const Embedding slotted_rows_;
  const RowsOptimizer slotted_rows_optimizer_;
  const DistributedDataset samples_;
  const metrics::Mean ids_;
  const Step<std::function<int64_t(WorkerContext&)>> step_;
  const Step<std::function<torch::Tensor(WorkerContext&, const Batch&)>> judge_;
  std::vector<int64_t> own_;  // numbers of steps whose results have come
};

}  // namespace lockstep::testing
