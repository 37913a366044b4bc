// Which batches count as used: those that a run has completed with.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/data/dealt_numbers.h"
#include "tests/data/records_in_memory.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::lanes;
using testing::numbers;
using testing::numbers_in;
using testing::run_workers;
using testing::WorkersCase;

bool is_said(const Strategy& strategy) {
  const auto findings = strategy.findings();
  return std::any_of(findings.begin(), findings.end(), [](const Finding& one) { return one.code == "LS-BATCH-HELD"; });
}

/// A strategy that trains by run(), and its data.
struct Trainer {
  explicit Trainer(const Dataset& samples = numbers(20), DistributeOptions options = {.global_batch = 4})
      : data(strategy.distribute(samples, std::move(options))) {}
  void run(const PerReplica<Batch>& batch) {
    strategy.run(batch, [&](ReplicaContext& ctx, const Batch& b) { step(ctx, b); });
  }
  void step(ReplicaContext& ctx, const Batch& b) const {
    ctx.scale_loss(model(ctx)->forward(b.input).mean()).backward();
    optimizer.step(ctx);
  }
  int64_t place() const { return data.cursor().position; }

  MirroredStrategy strategy{{.devices = lanes(1), .replicas = 2, .seed = 7}};
  Replicated<torch::nn::Linear> model = strategy.make_module([] { return torch::nn::Linear(1, 1); });
  Optimizer optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
  DistributedDataset data;
};

static_assert(internal::BatchesIn<std::map<std::string, std::vector<std::optional<Batch>>>>::kPossible);
static_assert(!internal::BatchesIn<std::map<std::string, std::vector<float>>>::kPossible,
              "a large vector is not walked");
static_assert(!internal::BatchesIn<std::tuple<std::vector<bool>, std::pair<int, torch::Tensor>>>::kPossible);

TEST(Used, IsABatchAfterItsRunAndNotBefore) {
  for (const int64_t ahead : {0, 3}) {
    Trainer trainer(numbers(20), {.global_batch = 4, .prefetch = ahead});
    for (const int64_t epoch : {0, 1}) {
      int64_t used = 0;
      for (const auto& batch : trainer.data.epoch(epoch)) {
        EXPECT_EQ(trainer.data.cursor().epoch, epoch);
        EXPECT_EQ(trainer.place(), used);
        trainer.run(batch);
        used += 4;
        EXPECT_EQ(trainer.place(), used);
      }
      EXPECT_EQ(trainer.place(), 20);
      EXPECT_EQ(trainer.data.cursor().epoch, epoch);
    }
    EXPECT_FALSE(is_said(trainer.strategy));
    EXPECT_TRUE(trainer.data.ledger().at(1).has_each_once(20));
  }
}

TEST(Used, IsNoBatchWhoseRunHasFailed) {
  for (const int64_t fails_at : {0, 2}) {
    Trainer trainer;
    try {
      for (const auto& batch : trainer.data.epoch(0)) {
        trainer.strategy.run(batch, [&](ReplicaContext& ctx, const Batch& b) {
          if (ctx.step() == fails_at) throw std::runtime_error("a disk hiccup");
          trainer.step(ctx, b);
        });
      }
      FAIL() << "nothing was thrown";
    } catch (const ReplicaError&) {
      EXPECT_EQ(trainer.place(), 4 * fails_at);
    }
    EXPECT_FALSE(is_said(trainer.strategy));
  }
}

TEST(Used, IsNoBatchAtWhichALoopEnds) {
  for (const int64_t ends_at : {0, 2}) {
    Trainer trainer;
    for (const auto& batch : trainer.data.epoch(0)) {
      if (trainer.strategy.step() == ends_at) break;
      trainer.run(batch);
    }
    EXPECT_EQ(trainer.place(), 4 * ends_at);
    trainer.data.seek(trainer.data.cursor());
    const auto rest = trainer.data.epoch(0);
    EXPECT_EQ(rest.begin()->begin()->ids[0].item<int64_t>(), 4 * ends_at);
    EXPECT_EQ(trainer.place(), 4 * ends_at);
  }
}

TEST(Used, BatchesMoveNoCursorThatIsSoughtAfterwards) {
  Trainer trainer;
  for (const auto& batch : trainer.data.epoch(0)) {
    trainer.run(batch);
    if (trainer.strategy.step() == 2) break;
  }
  data::Cursor cursor = trainer.data.cursor();
  cursor.position = 4;  // before the batch that was used last
  for (const auto& batch : trainer.data.epoch(1)) {
    trainer.run(batch);
    if (trainer.strategy.step() == 4) break;
  }
  cursor.epoch = 1;
  trainer.data.seek(cursor);
  EXPECT_EQ(trainer.place(), 4);
}

TEST(Used, IsABatchAlsoWhereARunIsGivenACopyOrAChangedOne) {
  Trainer trainer;
  int64_t step = 0;
  for (const auto& batch : trainer.data.epoch(0)) {
    const auto fn = [&](ReplicaContext& ctx, const Batch& b) { trainer.step(ctx, b); };
    const PerReplica<Batch> copy = batch;
    const auto changed = trainer.strategy.per_replica([&](ReplicaId r) {
      Batch part = batch[r];
      part.input = part.input * 2;
      return part;
    });
    EXPECT_EQ(trainer.place(), 4 * step);
    if (step == 0) trainer.strategy.run(copy, fn);
    if (step == 1) trainer.strategy.run(changed, fn);
    if (step == 2) trainer.strategy.run(std::tuple(batch, 3), [&](auto& ctx, const Batch& b, int) { fn(ctx, b); });
    if (step == 3) {
      trainer.strategy.run(std::vector{batch[ReplicaId(0)], batch[ReplicaId(1)]},
                           [&](ReplicaContext& ctx, const std::vector<Batch>& all) {
                             ctx.scale_loss(trainer.model(ctx)->forward(all[0].input).mean(), 1, 2).backward();
                             trainer.optimizer.step(ctx);
                           });
    }
    if (step == 4) trainer.strategy.run(batch, fn), trainer.strategy.run(batch, fn);
    EXPECT_EQ(trainer.place(), 4 * ++step);
  }
  EXPECT_FALSE(is_said(trainer.strategy));
}

TEST(Used, AreBatchesThatALoopCollectsOnlyWhenARunIsGivenThem) {
  Trainer trainer;
  for (const auto& batch : trainer.data.epoch(0)) {
    trainer.run(batch);
    break;
  }
  trainer.data.seek(trainer.data.cursor());
  std::vector<PerReplica<Batch>> collected;
  for (const auto& batch : trainer.data.epoch(0)) {
    collected.push_back(batch);
    EXPECT_EQ(trainer.place(), collected.size() <= 2 ? 4 : 12);
    if (collected.size() % 2 != 0) continue;
    const std::vector<PerReplica<Batch>> two(collected.end() - 2, collected.end());
    trainer.strategy.run(two[0], two[1], [&](ReplicaContext& ctx, const Batch& a, const Batch& b) {
      ctx.scale_loss(trainer.model(ctx)->forward(a.input).mean(), a.samples(), 8).backward();
      ctx.scale_loss(trainer.model(ctx)->forward(b.input).mean(), b.samples(), 8).backward();
      trainer.optimizer.step(ctx);
    });
    EXPECT_EQ(trainer.place(), 4 + 4 * static_cast<int64_t>(collected.size()));
  }
}

TEST(Used, AreBatchesOfSeveralDataSetsEachByItself) {
  Trainer trainer;
  const auto other = trainer.strategy.distribute(numbers_in({9, 11}), {.global_batch = 4});
  const auto epoch = other.epoch(0);
  auto second = epoch.begin();
  int64_t step = 0;
  for (const auto& batch : trainer.data.epoch(0)) {
    EXPECT_EQ(other.cursor().position, 4 * step);
    trainer.run(batch);
    EXPECT_EQ(trainer.place(), 4 * (step + 1));
    EXPECT_EQ(other.cursor().position, 4 * step) << "its batch is the second step's";
    trainer.strategy.run(*second, [](ReplicaContext&, const Batch&) {});
    EXPECT_EQ(other.cursor().position, 4 * ++step);
    if (step == 4) break;
    ++second;
  }
  EXPECT_FALSE(is_said(trainer.strategy));
}

TEST(Used, IsNoBatchThatWasEvaluatedBeforeItsRun) {
  Trainer trainer;
  int64_t step = 0;
  for (const auto& batch : trainer.data.epoch(0)) {
    trainer.strategy.evaluate(batch, [](ReplicaContext&, const Batch&) {});
    EXPECT_EQ(trainer.place(), 4 * step++);
    trainer.run(batch);
  }
  EXPECT_FALSE(is_said(trainer.strategy));
}

TEST(Used, AreBatchesOfALoopOfEvaluations) {
  Trainer trainer;
  const auto data = trainer.strategy.distribute(numbers(12), {.global_batch = 4});
  int64_t step = 0;
  for (const auto& batch : data.epoch(0)) {
    trainer.strategy.evaluate(batch, [](ReplicaContext&, const Batch&) {});
    if (++step > 1) {
      EXPECT_EQ(data.cursor().position, 4 * step);
    }
  }
  EXPECT_FALSE(is_said(trainer.strategy));
}

TEST(Used, AreBatchesOfWhichAProgramSaysSo) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto data = strategy.distribute(numbers(12), {.global_batch = 4});
  int64_t used = 0;
  bool first = true;
  for (const auto& batch : data.epoch(0)) {
    if (!first) {
      EXPECT_EQ(data.cursor().position, used);
    }
    static_cast<void>(batch);
    data.used();
    first = false;
    EXPECT_EQ(data.cursor().position, used += 4);
  }
  EXPECT_FALSE(is_said(strategy));
}

TEST(Used, IsSaidToBeUnknownWhereAProgramUsesBatchesWithoutRun) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto data = strategy.distribute(numbers(12), {.global_batch = 4});
  int64_t used = 0;
  for (const auto& batch : data.epoch(0)) {
    static_cast<void>(batch);
    EXPECT_EQ(data.cursor().position, used += 4) << "as if it said so";
  }
  EXPECT_TRUE(is_said(strategy));
}

TEST(Used, IsSaidToBeUnknownWhereAStepCapturesItsBatch) {
  Trainer trainer;
  int64_t used = 0;
  for (const auto& batch : trainer.data.epoch(0)) {
    trainer.strategy.run([&](ReplicaContext& ctx) {
      ctx.scale_loss(trainer.model(ctx)->forward(batch[ctx.replica_id()].input).mean(), 2, 4).backward();
      trainer.optimizer.step(ctx);
    });
    EXPECT_EQ(trainer.place(), used += 4);
    EXPECT_TRUE(is_said(trainer.strategy));
  }
}

TEST(Used, IsSaidWhereABatchGoesByAfterACursorWasTaken) {
  Trainer trainer;
  for (const auto& batch : trainer.data.epoch(0)) {
    if (trainer.strategy.step() == 1) {
      trainer.run(batch);
      continue;
    }
    if (trainer.strategy.step() == 2 && trainer.place() == 8 && !is_said(trainer.strategy)) continue;  // it is left out
    trainer.run(batch);
  }
  EXPECT_TRUE(is_said(trainer.strategy));
}

TEST(Used, IsTheSameOnAllWorkers) {
  for (const Sharding sharding : {Sharding::kFile, Sharding::kData}) {
    const auto places = run_workers(WorkersCase{2, 4}, [&](Strategy& strategy) {
      const auto model = strategy.make_module([] { return torch::nn::Linear(2, 1); });
      const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
      const auto data = strategy.distribute(numbers_in({3, 5, 4, 8}), {.global_batch = 4, .sharding = sharding});
      std::vector<std::string> all;
      for (const auto& batch : data.epoch(0)) {
        all.push_back(data::to_json(data.cursor()));
        try {
          strategy.run(batch, [&](ReplicaContext& ctx, const Batch& b) {
            ctx.scale_loss(model(ctx)->forward(b.input).mean()).backward();
            if (ctx.step() == 2 && ctx.replica_id() == 3) throw std::runtime_error("one worker's disk");
            optimizer.step(ctx);
          });
        } catch (const ReplicaError&) {
          all.push_back(data::to_json(data.cursor()));
          break;
        }
      }
      EXPECT_EQ(all.size(), 4u);
      EXPECT_EQ(all.back(), all.at(2));
      return all;
    });
    EXPECT_EQ(places[0], places[1]);
  }
}

}  // namespace
}  // namespace lockstep
