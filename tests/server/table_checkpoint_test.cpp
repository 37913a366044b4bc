// Rows of tables in checkpoints: bits of a resumed run, what does not fit, damage, and memory.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/exchange.h"
#include "lockstep/server/local/table_state.h"
#include "lockstep/server/parameter_server.h"
#include "lockstep/strategy/kinds/mirrored.h"
#include "tests/server/small_net.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::expect_error;
using torch::Tensor;

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

enum class Rule { kMomentum, kAdagrad, kAdam };

/// A model with dropout and a table, trained in step by two workers.
struct RowsRun {
  explicit RowsRun(Rule rule, const EmbeddingOptions& table_options = {.name = "users", .dim = 6}, int64_t servers = 1,
                   uint64_t seed = 7)
      : strategy({.staleness = 0, .workers = 2, .servers = servers, .seed = seed}),
        model(strategy.make_module([] { return std::make_shared<testing::SmallNet>(); })),
        optimizer(strategy.make_optimizer(model, torch::optim::AdamOptions(0.01))),
        table(strategy.make_embedding(table_options)),
        rows(make(rule)),
        data(strategy.distribute(testing::some_samples(40), {.global_batch = 8, .shuffle = true})),
        checkpoint(strategy) {
    checkpoint.track("data", data);
  }

  RowsOptimizer make(Rule rule) {
    switch (rule) {
      case Rule::kMomentum: return strategy.make_optimizer(table, torch::optim::SGDOptions(0.1).momentum(0.9));
      case Rule::kAdagrad: return strategy.make_optimizer(table, torch::optim::AdagradOptions(0.1));
      case Rule::kAdam: break;
    }
    return strategy.make_optimizer(table, torch::optim::AdamOptions(0.1));
  }

  void steps(int64_t count) {
    if (!step) {
      step.emplace(strategy.step("train", std::function<void(WorkerContext&)>([this](WorkerContext& ctx) {
                                   const Batch batch = data.next(ctx);
                                   const Tensor looked = table.look_up(ctx, batch.ids.remainder(13));
                                   const Tensor out = model(ctx)->forward(batch.input + looked.to(torch::kFloat));
                                   ctx.scale_loss(torch::cross_entropy_loss(out, batch.target)).backward();
                                   ctx.push({.clip_global_norm = 1.0});
                                 })));
    }
    strategy.coordinate([&](Coordinator& coordinator) {
      for (int64_t k = 0; k < count; ++k) coordinator.schedule(*step);
    });
  }

  ParameterServerStrategy strategy;
  Replicated<std::shared_ptr<testing::SmallNet>> model;
  Optimizer optimizer;
  Embedding table;
  RowsOptimizer rows;
  DistributedDataset data;
  Checkpoint checkpoint;
  std::optional<Step<std::function<void(WorkerContext&)>>> step;
};

class TableCheckpoint : public testing::ScratchFolder {
 protected:
  /// Both checkpoints have the same bytes in this file.
  void expect_same(const std::string& file) const {
    const std::string a = bytes_of(path("a") + "/" + file);
    EXPECT_FALSE(a.empty()) << file;
    EXPECT_EQ(a, bytes_of(path("b") + "/" + file)) << file;
  }
};

TEST_F(TableCheckpoint, AResumedRunHasTheBitsOfOneThatNeverStopped) {
  for (const Rule rule : {Rule::kMomentum, Rule::kAdagrad, Rule::kAdam}) {
    RowsRun never(rule);
    never.rows.set_learning_rate(0.05);
    never.steps(26);
    for (const char* const one : {"a", "b"}) fs::remove_all(path(one));  // a second save would choose other names
    never.checkpoint.save(path("a"));
    RowsRun first(rule);
    first.rows.set_learning_rate(0.05);
    first.steps(14);
    first.checkpoint.save(path("middle"));
    RowsRun second(rule, {.name = "users", .dim = 6}, 3);
    EXPECT_EQ(second.checkpoint.restore(path("middle")).step, 7);
    EXPECT_EQ(second.rows.learning_rate(), 0.05);
    EXPECT_TRUE(torch::equal(second.table.read(torch::arange(13)), first.table.read(torch::arange(13))));
    second.steps(12);
    second.checkpoint.save(path("b"));
    for (const char* const file : {"tables.safetensors", "weights.safetensors", "optimizer.safetensors"})
      expect_same(file);
    EXPECT_EQ(never.data.cursor(), second.data.cursor());
    second.strategy.coordinate([&](Coordinator& coordinator) { EXPECT_EQ(coordinator.steps(), 26); });
  }
}

TEST_F(TableCheckpoint, OtherProgramsReadTheRows) {
  RowsRun run(Rule::kAdagrad);
  run.steps(8);
  run.checkpoint.save(path("a"));
  const auto tensors = load_tensors(path("a") + "/tables.safetensors");
  const Tensor ids = tensors.at("users/ids");
  EXPECT_TRUE(torch::equal(ids, std::get<0>(ids.sort())));
  EXPECT_EQ(ids.numel(), run.table.size());
  EXPECT_TRUE(torch::equal(tensors.at("users/weights"), run.table.read(ids)));
  EXPECT_EQ(tensors.at("users/sum").sizes(), (std::vector<int64_t>{ids.numel(), 6}));
  EXPECT_FALSE(tensors.contains("users/counted_ids"));
}

TEST_F(TableCheckpoint, CountsOfRowsThatAreNotAdmittedGoOn) {
  const EmbeddingOptions options{.name = "users", .dim = 6, .admit_after = 3, .evict_after = 9};
  RowsRun never(Rule::kAdam, options);
  never.steps(20);
  never.checkpoint.save(path("a"));
  RowsRun first(Rule::kAdam, options);
  first.steps(4);
  first.checkpoint.save(path("middle"));
  EXPECT_TRUE(load_tensors(path("middle") + "/tables.safetensors").contains("users/counted_pushes"));
  RowsRun second(Rule::kAdam, options);
  second.checkpoint.restore(path("middle"));
  second.steps(16);
  second.checkpoint.save(path("b"));
  expect_same("tables.safetensors");
  expect_same("weights.safetensors");
}

TEST_F(TableCheckpoint, WhatDoesNotFitIsNamedAndNothingChanges) {
  RowsRun run(Rule::kAdagrad);
  run.steps(6);
  run.checkpoint.save(path("a"));
  const auto refused = [&](RowsRun& other, std::initializer_list<std::string_view> values) {
    other.steps(2);
    const Tensor before = other.table.read(torch::arange(13));
    const auto weights = other.model.state();
    expect_error<UsageError>([&] { other.checkpoint.restore(path("a")); }, "LS-CHECKPOINT-MISFIT", values);
    EXPECT_TRUE(torch::equal(other.table.read(torch::arange(13)), before));
    for (const auto& [name, value] : other.model.state()) EXPECT_TRUE(torch::equal(value, weights.at(name)));
    EXPECT_EQ(other.strategy.Strategy::step(), 1);
  };
  RowsRun momentum(Rule::kMomentum);
  refused(momentum, {"table 'users'", "rule", "'Adagrad'"});
  RowsRun seed(Rule::kAdagrad, {.name = "users", .dim = 6}, 1, 8);
  refused(seed, {"table 'users'", "seed", "'7'", "'8'"});
  RowsRun wide(Rule::kAdagrad, {.name = "users", .dim = 6, .dtype = torch::kDouble});
  refused(wide, {"table 'users'", "dtype", "'Float'", "'Double'"});
  RowsRun ones(Rule::kAdagrad, {.name = "users", .dim = 6, .initial = 1.0});
  refused(ones, {"table 'users'", "initial"});
  RowsRun other(Rule::kAdagrad, {.name = "items", .dim = 6});
  refused(other, {"1 missing in it: items", "1 unexpected: users"});
}

TEST_F(TableCheckpoint, OptionsOfARestoreHoldForTables) {
  RowsRun run(Rule::kAdagrad);
  run.steps(6);
  run.checkpoint.save(path("a"));
  RowsRun only(Rule::kAdagrad);
  only.steps(2);
  const auto weights = only.model.state();
  only.checkpoint.restore(path("a"), {.only = {"users"}});
  EXPECT_TRUE(torch::equal(only.table.read(torch::arange(13)), run.table.read(torch::arange(13))));
  for (const auto& [name, value] : only.model.state()) EXPECT_TRUE(torch::equal(value, weights.at(name)));
  EXPECT_EQ(only.strategy.Strategy::step(), 1);
  RowsRun other(Rule::kAdagrad, {.name = "items", .dim = 6});
  const RestoreInfo info = other.checkpoint.restore(path("a"), {.allow_missing = true, .allow_unexpected = true});
  EXPECT_EQ(info.missing, std::vector<std::string>{"items"});
  EXPECT_EQ(info.unexpected, std::vector<std::string>{"users"});
  EXPECT_EQ(other.table.size(), 0);
  RowsRun later(Rule::kAdagrad, {.name = "items", .dim = 6});
  expect_error<UsageError>(
      [&] { later.checkpoint.restore(path("a"), {.allow_missing = true, .restore_on_create = true}); },
      "LS-CHECKPOINT-MISFIT", {"table 'users'"});
}

TEST_F(TableCheckpoint, AFlippedBitOfARowIsFoundAndAnOlderCheckpointIsRestored) {
  RowsRun run(Rule::kAdagrad);
  CheckpointManager manager(run.checkpoint, {.directory = path("runs"), .async = false});
  run.steps(4);
  manager.save();
  const Tensor older = run.table.read(torch::arange(13));
  run.steps(4);
  const fs::path newest = manager.save();
  const fs::path file = newest / "tables.safetensors";
  const std::string whole = bytes_of(file);
  std::string broken = whole;
  broken[whole.size() - 5] = static_cast<char>(broken[whole.size() - 5] ^ 1);
  std::ofstream(file, std::ios::binary) << broken;
  RowsRun other(Rule::kAdagrad);
  other.steps(2);
  const Tensor before = other.table.read(torch::arange(13));
  expect_error<DataError>([&] { other.checkpoint.restore(newest); }, "LS-CHECKPOINT-DAMAGED",
                          {"tables.safetensors", "'users"});
  EXPECT_TRUE(torch::equal(other.table.read(torch::arange(13)), before));
  CheckpointManager others(other.checkpoint, {.directory = path("runs")});
  EXPECT_EQ(others.restore_latest()->step, 2);
  EXPECT_TRUE(torch::equal(other.table.read(torch::arange(13)), older));
}

TEST_F(TableCheckpoint, ACheckpointOfAMirroredStrategyGoesOnInStep) {
  // The strategies have the same bits, so that either goes on where the other was.
  const auto samples = testing::some_samples(40);
  MirroredStrategy mirrored({.devices = {"cpu:0"}, .replicas = 2, .seed = 7});
  auto model = mirrored.make_module([] { return std::make_shared<testing::SmallNet>(); });
  const Optimizer optimizer = mirrored.make_optimizer(model, torch::optim::AdamOptions(0.01));
  const auto data = mirrored.distribute(samples, {.global_batch = 8, .shuffle = true, .name = "data"});
  for (const auto& batch : data.epoch(0)) {
    mirrored.run(batch, [&](ReplicaContext& ctx, const Batch& b) {
      ctx.scale_loss(torch::cross_entropy_loss(model(ctx)->forward(b.input), b.target)).backward();
      optimizer.step(ctx);
    });
  }
  Checkpoint(mirrored).save(path("a"));
  ParameterServerStrategy strategy({.staleness = 0, .workers = 2, .seed = 7});
  auto other = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
  const Optimizer others = strategy.make_optimizer(other, torch::optim::AdamOptions(0.01));
  const auto same = strategy.distribute(samples, {.global_batch = 8, .shuffle = true, .name = "data"});
  Checkpoint checkpoint(strategy);
  EXPECT_EQ(checkpoint.restore(path("a")).step, 5);
  strategy.coordinate([&](Coordinator& coordinator) { EXPECT_EQ(coordinator.steps(), 10); });
  checkpoint.save(path("b"));
  expect_same("weights.safetensors");
  Checkpoint(mirrored).restore(path("b"));
}

/// The most memory that this process had since the last call, in bytes, beside what it has now.
class Peak {
 public:
  Peak() {
    std::ofstream("/proc/self/clear_refs") << "5";
    before_ = kilobytes("VmRSS:");
  }
  int64_t grown() const { return (kilobytes("VmHWM:") - before_) * 1024; }

 private:
  static int64_t kilobytes(const std::string& line) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      int64_t value = 0;
      if (word == line && status >> value) return value;
    }
    return 0;
  }
  int64_t before_ = 0;
};

TEST_F(TableCheckpoint, ASaveTakesAFractionOfTheTable) {
  RowsRun run(Rule::kAdagrad, {.name = "users", .dim = 32});
  constexpr int64_t kRows = 100'000;
  const auto push = run.strategy.step("push", [&](WorkerContext& ctx) {
    const Tensor ids = torch::arange(kRows / 10) + ctx.step() * (kRows / 10);
    run.table.look_up(ctx, ids).sum().backward();
    ctx.push({.loss_scaled_by_hand = true});
  });
  run.strategy.coordinate([&](Coordinator& coordinator) {
    for (int k = 0; k < 10; ++k) coordinator.schedule(push);
  });
  ASSERT_EQ(run.table.size(), kRows);
  CheckpointManager manager(run.checkpoint, {.directory = path("runs")});
  const Peak peak;
  manager.save();
  manager.wait();
  EXPECT_LT(peak.grown(), run.table.bytes() / 8) << "of " << run.table.bytes();
  RowsRun other(Rule::kAdagrad, {.name = "users", .dim = 32});
  CheckpointManager(other.checkpoint, {.directory = path("runs")}).restore_latest();
  EXPECT_EQ(other.table.size(), kRows);
  const Tensor some = torch::arange(0, kRows, 997);
  EXPECT_TRUE(torch::equal(other.table.read(some), run.table.read(some)));
}

}  // namespace
}  // namespace lockstep
