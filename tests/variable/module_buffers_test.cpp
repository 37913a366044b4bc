// What becomes of buffers that each replica's forward pass moves, by ModuleOptions::buffers, and what evaluations have.
#include "lockstep/variable/module/module_buffers.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/workers.h"
#include "tests/variable/moved_buffers.h"

namespace lockstep::moved_buffers {
namespace {

using testing::expect_error;
using testing::expect_step_error;
using testing::lanes;
using testing::run_workers;
using testing::WorkersCase;

template <class M>
void expect_evaluation_is_the_export(Strategy& strategy, const Replicated<M>& model) {
  auto exported = model.export_module();
  const Named state = model.state();
  Named of_export;
  for (const auto& item : exported->named_buffers()) of_export[item.key()] = item.value();
  EXPECT_FALSE(of_export.empty());
  for (const auto& [name, value] : of_export) EXPECT_TRUE(same_bits(value, state.at(name))) << name;
  for (const Named& one : buffers_in_evaluation(strategy, model)) {
    for (const auto& [name, value] : of_export)
      EXPECT_TRUE(same_bits(one.at(name), value)) << name << ": " << one.at(name) << "\ninstead of\n" << value;
  }
}

struct BuffersCase {
  Buffers buffers;
  WorkersCase on;
};

std::ostream& operator<<(std::ostream& out, const BuffersCase& one) {
  return out << internal::name_of(one.buffers) << ", " << one.on;
}

std::vector<BuffersCase> all_cases() {
  std::vector<BuffersCase> all;
  for (const Buffers buffers :
       {Buffers::kAuto, Buffers::kMean, Buffers::kFirstReplica, Buffers::kSum, Buffers::kEqual}) {
    for (const int64_t replicas : {1, 2, 3}) {
      for (const int num_lanes : {1, 2}) {
        for (const int64_t workers : {1, 2}) {
          if (replicas / workers >= num_lanes)
            all.push_back({buffers, {.workers = workers, .replicas = replicas, .lanes = num_lanes}});
        }
      }
    }
    all.push_back({buffers, {.workers = 3, .replicas = 3}});
  }
  return all;
}

class BuffersWith : public ::testing::TestWithParam<BuffersCase> {
 protected:
  /// Trains, and calls `after(strategy, model)` after each step; with kEqual a module that moves its buffers equally.
  template <class After>
  void train(const After& after) {
    run_workers(GetParam().on, [&](Strategy& strategy) {
      const ModuleOptions options{.buffers = GetParam().buffers};
      const auto go = [&](const auto& model) {
        auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
        for (int64_t step = 0; step < 4; ++step) {
          train_step(strategy, model, optimizer, step);
          after(strategy, model);
        }
      };
      if (GetParam().buffers == Buffers::kEqual) {
        go(strategy.make_module([] { return convert_batch_norm(normed()); }, options));
      } else {
        go(strategy.make_module([] { return Net(); }, options));
      }
      return 0;
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Everywhere, BuffersWith, ::testing::ValuesIn(all_cases()));

TEST_P(BuffersWith, AnEvaluationBetweenStepsHasTheValuesOfTheExportedModule) {
  train([](Strategy& strategy, const auto& model) { expect_evaluation_is_the_export(strategy, model); });
}

TEST_P(BuffersWith, AnEvaluationChangesNothingThatTrainingGoesOnFrom) {
  std::mutex mutex;
  std::map<std::pair<int64_t, int64_t>, std::vector<Named>> quiet;
  train([&](Strategy& strategy, const auto& model) {
    const std::lock_guard<std::mutex> lock(mutex);
    quiet[{strategy.worker_index(), strategy.step()}] = components_of(model);
  });
  train([&](Strategy& strategy, const auto& model) {
    buffers_in_evaluation(strategy, model);
    EXPECT_THROW(strategy.evaluate([](ReplicaContext& /*ctx*/) { throw std::runtime_error("no"); }), ReplicaError);
    const std::vector<Named> now = components_of(model);
    const std::lock_guard<std::mutex> lock(mutex);
    const std::vector<Named>& expected = quiet[{strategy.worker_index(), strategy.step()}];
    ASSERT_EQ(now.size(), expected.size());
    for (std::size_t r = 0; r < now.size(); ++r) EXPECT_TRUE(same(now[r], expected[r])) << "replica " << r;
  });
}

TEST_P(BuffersWith, AReadHasTheBitsOfOneWorkerAndOneLane) {
  const auto states_on = [&](const WorkersCase& on) {
    return run_workers(on, [&](Strategy& strategy) {
      std::vector<Named> states;
      if (GetParam().buffers == Buffers::kEqual) return states;
      const auto model = strategy.make_module([] { return Net(); }, {.buffers = GetParam().buffers});
      auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
      for (int64_t step = 0; step < 3; ++step) {
        train_step(strategy, model, optimizer, step);
        states.push_back(model.state());
      }
      return states;
    });
  };
  const std::vector<Named> expected = states_on({.workers = 1, .replicas = GetParam().on.replicas}).front();
  for (const std::vector<Named>& states : states_on(GetParam().on)) {
    ASSERT_EQ(states.size(), expected.size());
    for (std::size_t i = 0; i < states.size(); ++i) EXPECT_TRUE(same(states[i], expected[i])) << "step " << i;
  }
}

/// Where replicas are, for tests of one option: in one process on one or two lanes, or on two workers.
class BuffersOn : public ::testing::TestWithParam<WorkersCase> {};

INSTANTIATE_TEST_SUITE_P(Places, BuffersOn,
                         ::testing::Values(WorkersCase{.workers = 1, .replicas = 3},
                                           WorkersCase{.workers = 1, .replicas = 4, .lanes = 2},
                                           WorkersCase{.workers = 2, .replicas = 3},
                                           WorkersCase{.workers = 2, .replicas = 2}));

TEST_P(BuffersOn, WithFirstReplicaAllHaveWhatReplica0Has) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto model = strategy.make_module([] { return Codes(); }, {.buffers = Buffers::kFirstReplica});
    auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
    Tensor total = torch::zeros({4});
    int64_t seen = 5;
    for (int64_t step = 0; step < 3; ++step) {
      train_step(strategy, model, optimizer, step);
      const int64_t first = (12 + strategy.num_replicas() - 1) / strategy.num_replicas();  // rows of replica 0
      total.add_(rows(step).slice(0, 0, first).sum(0));
      seen += first;
      for (const Named& one : components_of(model)) {
        EXPECT_TRUE(same_bits(one.at("model.total"), total));
        EXPECT_EQ(one.at("model.seen").item<int64_t>(), seen);
      }
    }
    EXPECT_TRUE(strategy.findings().empty());
    return 0;
  });
}

TEST_P(BuffersOn, WithSumAllHaveWhatAllHaveAdded) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto model = strategy.make_module([] { return Codes(); }, {.buffers = Buffers::kSum});
    auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
    Tensor total = torch::zeros({4});
    for (int64_t step = 0; step < 3; ++step) {
      train_step(strategy, model, optimizer, step);
      total.add_(rows(step).sum(0));
      for (const Named& one : components_of(model)) {
        EXPECT_TRUE(torch::allclose(one.at("model.total"), total, 1e-5, 1e-5)) << one.at("model.total") << total;
        EXPECT_EQ(one.at("model.seen").item<int64_t>(), 5 + 12 * (step + 1));
        EXPECT_TRUE(same_bits(one.at("model.constant"), torch::arange(3).to(torch::kFloat))) << "nobody has moved it";
      }
    }
    Named loaded = model.state();
    loaded["seen"] = torch::full({}, 100, torch::kLong);
    model.load(loaded);
    train_step(strategy, model, optimizer, 3);
    EXPECT_EQ(model.state().at("seen").item<int64_t>(), 112);
    EXPECT_TRUE(strategy.findings().empty());
    return 0;
  });
}

/// A count beside batch normalisation.
struct CountedNormImpl : torch::nn::Module {
  CountedNormImpl() { register_module("norm", norm); }
  Tensor forward(const Tensor& x) {
    seen.add_(x.size(0));
    return norm->forward(x);
  }
  torch::nn::BatchNorm1d norm{4};
  Tensor seen = register_buffer("seen", torch::zeros({}, torch::kLong));
};
TORCH_MODULE(CountedNorm);

TEST_P(BuffersOn, WithSumCountsAreAddedBesideStatisticsThatAreNot) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto model = strategy.make_module([] { return CountedNorm(); }, {.buffers = Buffers::kSum});
    for (int64_t step = 0; step < 3; ++step) {
      strategy.run(strategy.split(rows(step)),
                   [&](ReplicaContext& ctx, const Batch& part) { model(ctx)->forward(part.input); });
    }
    const Named state = model.state();
    EXPECT_EQ(state.at("seen").item<int64_t>(), 36);
    EXPECT_EQ(state.at("norm.num_batches_tracked").item<int64_t>(), 3) << "one for each run, and not for each replica";
    return 0;
  });
}

TEST_P(BuffersOn, WithSumAnEvaluationIsCountedToo) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto model = strategy.make_module([] { return Codes(); }, {.buffers = Buffers::kSum});
    strategy.evaluate(strategy.split(rows(0)),
                      [&](ReplicaContext& ctx, const Batch& b) { model(ctx)->seen.add_(b.input.size(0)); });
    EXPECT_EQ(model.state().at("seen").item<int64_t>(), 17);
    expect_evaluation_is_the_export(strategy, model);
    return 0;
  });
}

TEST_P(BuffersOn, WithSumStatisticsOfNormalisationStayAverages) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto model = strategy.make_module([] { return normed(); }, {.buffers = Buffers::kSum});
    auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
    const auto mean = strategy.make_module([] { return normed(); }, {.name = "mean", .buffers = Buffers::kMean});
    mean.load(model.state());
    auto optimizer_of_mean = strategy.make_optimizer(mean, torch::optim::SGDOptions(0.05));
    for (int64_t step = 0; step < 3; ++step) {
      train_step(strategy, model, optimizer, step);
      train_step(strategy, mean, optimizer_of_mean, step);
    }
    EXPECT_TRUE(same(model.state(), mean.state()));
    const std::vector<Finding> findings = strategy.findings();  // as with kAuto
    EXPECT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings.at(0).code, "LS-BUFFERS-DIFFER");
    EXPECT_NE(findings.at(0).text.find("module 'model'"), std::string::npos) << findings.at(0).text;
    return 0;
  });
}

TEST_P(BuffersOn, WithEqualARunThatMovesThemApartFailsAndIsUndone) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto model = strategy.make_module([] { return normed(); }, {.buffers = Buffers::kEqual});
    const std::vector<Named> before = components_of(model);
    const auto forward = [&](ReplicaContext& ctx, const Batch& b) { model(ctx)->forward(b.input); };
    expect_step_error<DivergenceError>([&] { strategy.run(strategy.split(rows(0)), forward); }, "LS-BUFFERS-DIFFER",
                                       {"model.1.running_mean", "replica 1", "replica 0"});
    if (strategy.num_workers() == 2 && strategy.num_replicas() == 2) {
      expect_step_error<DivergenceError>([&] { strategy.run(strategy.split(rows(0)), forward); }, "LS-BUFFERS-DIFFER",
                                         {"worker 1"});
    }
    EXPECT_EQ(strategy.step(), 0);
    const std::vector<Named> now = components_of(model);
    for (std::size_t r = 0; r < now.size(); ++r) EXPECT_TRUE(same(now[r], before[r])) << "replica " << r;
    // What all replicas move alike is no error.
    strategy.run([&](ReplicaContext& ctx) { model(ctx)->forward(rows(0)); });
    EXPECT_EQ(strategy.step(), 1);
    return 0;
  });
}

TEST_P(BuffersOn, WithEqualAReadAndAnEvaluationOfDifferentValuesAreErrors) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto model = strategy.make_module([] { return Codes(); }, {.buffers = Buffers::kEqual});
    const auto found = std::find_if(model.variables().begin(), model.variables().end(),
                                    [](const Variable& one) { return one.name() == "model.total"; });
    found->assign(strategy.per_replica([](ReplicaId r) { return torch::full({4}, static_cast<double>(r.value())); }));
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { found->read(); }, [&] { model.state(); }, [&] { model.export_module(); },
             [&] { strategy.evaluate([](ReplicaContext& /*ctx*/) {}); }}) {
      expect_error<DivergenceError>(call, "LS-BUFFERS-DIFFER", {"model.total", "replica 1"});
    }
    found->assign(torch::ones({4}));
    EXPECT_TRUE(same_bits(found->read(), torch::ones({4})));
    return 0;
  });
}

TEST_P(BuffersOn, ARunThatFailsLeavesThemAsTheyWere) {
  for (const Buffers buffers : {Buffers::kMean, Buffers::kFirstReplica, Buffers::kSum}) {
    run_workers(GetParam(), [&](Strategy& strategy) {
      const auto model = strategy.make_module([] { return Codes(); }, {.buffers = buffers});
      strategy.run(strategy.split(rows(0)), [&](ReplicaContext& ctx, const Batch& b) { model(ctx)->forward(b.input); });
      const std::vector<Named> before = components_of(model);
      EXPECT_THROW(strategy.run(strategy.split(rows(1)),
                                [&](ReplicaContext& ctx, const Batch& b) {
                                  model(ctx)->fails = ctx.replica_id().value() == 1;
                                  model(ctx)->forward(b.input);
                                }),
                   ReplicaError);
      const std::vector<Named> now = components_of(model);
      for (std::size_t r = 0; r < now.size(); ++r) EXPECT_TRUE(same(now[r], before[r])) << "replica " << r;
      return 0;
    });
  }
}

TEST_P(BuffersOn, ABufferThatGrowsIsTakenFromReplica0AndIsNoSum) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto grow = [](const auto& model) {
      return [&](ReplicaContext& ctx) { model(ctx)->total.set_data(torch::full({5 + ctx.replica_id().value()}, 2.0)); };
    };
    const auto first = strategy.make_module([] { return Codes(); }, {.buffers = Buffers::kFirstReplica});
    strategy.run(grow(first));
    for (const Named& one : components_of(first)) EXPECT_TRUE(same_bits(one.at("model.total"), torch::full({5}, 2.0)));
    const auto sum = strategy.make_module([] { return Codes(); }, {.name = "sum", .buffers = Buffers::kSum});
    expect_step_error<UsageError>([&] { strategy.run(grow(sum)); }, "LS-NOT-ALIKE", {"sum.total"});
    // With kMean each keeps its own, in evaluations too: there is nothing that a read could give.
    const auto mean = strategy.make_module([] { return Codes(); }, {.name = "mean", .buffers = Buffers::kMean});
    strategy.run(grow(mean));
    const auto sizes = strategy.evaluate([&](ReplicaContext& ctx) { return mean(ctx)->total.size(0); });
    for (int64_t r = 0; r < static_cast<int64_t>(sizes.size()); ++r)
      EXPECT_EQ(sizes[sizes.first_replica() + r], 5 + sizes.first_replica().value() + r);
    return 0;
  });
}

TEST_P(BuffersOn, WhatAnEvaluationWritesStays) {
  run_workers(GetParam(), [&](Strategy& strategy) {
    const auto model = strategy.make_module([] { return Codes(); });
    strategy.run(strategy.split(rows(0)), [&](ReplicaContext& ctx, const Batch& b) { model(ctx)->forward(b.input); });
    const Tensor mean = model.state().at("total");
    strategy.evaluate([&](ReplicaContext& ctx) { model(ctx)->total.add_(1); });
    for (const Named& one : components_of(model)) EXPECT_TRUE(same_bits(one.at("model.total"), mean + 1));
    return 0;
  });
}

TEST(ModuleBuffers, OneReplicaIsToldNothingAndKeepsItsBits) {
  const auto trained = [](Buffers buffers) {
    OneDeviceStrategy strategy({.seed = 1});
    const auto model = strategy.make_module([] { return Net(); }, {.buffers = buffers});
    auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
    for (int64_t step = 0; step < 3; ++step) train_step(strategy, model, optimizer, step);
    EXPECT_TRUE(strategy.findings().empty());
    return model.state();
  };
  const Named expected = trained(Buffers::kMean);
  EXPECT_EQ(expected.at("codes.seen").item<int64_t>(), 5 + 36);
  for (const Buffers buffers : {Buffers::kAuto, Buffers::kFirstReplica, Buffers::kSum, Buffers::kEqual})
    EXPECT_TRUE(same(trained(buffers), expected)) << internal::name_of(buffers);
}

class SavedBuffers : public testing::ScratchFolder {};

TEST_F(SavedBuffers, OfSumsGoOnFromACheckpointOnAnotherNumberOfReplicas) {
  const auto count = [](Strategy& strategy, const Replicated<Codes>& model) {
    strategy.run(strategy.split(rows(0)), [&](ReplicaContext& ctx, const Batch& b) { model(ctx)->forward(b.input); });
    return model.state().at("seen").item<int64_t>();
  };
  {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 3, .seed = 1});
    const auto model = strategy.make_module([] { return Codes(); }, {.buffers = Buffers::kSum});
    EXPECT_EQ(count(strategy, model), 17);
    Checkpoint(strategy).save(path("saved"));
  }
  for (const int64_t replicas : {2, 3}) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = replicas, .seed = 1});
    const auto model = strategy.make_module([] { return Codes(); }, {.buffers = Buffers::kSum});
    Checkpoint(strategy).restore(path("saved"), {.allow_other_replicas = true});
    EXPECT_EQ(model.state().at("seen").item<int64_t>(), 17);
    EXPECT_EQ(count(strategy, model), 29);
  }
}

TEST(ModuleBuffers, DescribeSaysWhatBecomesOfThem) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2, .seed = 1});
  const auto a = strategy.make_module([] { return Codes(); }, {.name = "a", .buffers = Buffers::kFirstReplica});
  const auto b = strategy.make_module([] { return Codes(); }, {.name = "b", .buffers = Buffers::kSum});
  const auto c = strategy.make_module([] { return Codes(); }, {.name = "c", .buffers = Buffers::kEqual});
  const std::string table = strategy.describe_variables();
  for (const char* kind : {"buffer first", "buffer sum", "buffer equal"})
    EXPECT_NE(table.find(kind), std::string::npos) << kind << " in:\n" << table;
}

TEST(ModuleBuffers, AnOptionThatDoesNotExistIsRefusedAndOneThatDiffersBetweenWorkersToo) {
  OneDeviceStrategy strategy({.seed = 1});
  expect_error<UsageError>([&] { strategy.make_module([] { return Codes(); }, {.buffers = static_cast<Buffers>(17)}); },
                           "LS-OPTION", {"17"});
  testing::expect_error_on_all<UsageError>(
      {.workers = 2, .replicas = 2},
      [](Strategy& one) {
        one.make_module([] { return Codes(); }, {.buffers = one.worker_index() == 0 ? Buffers::kMean : Buffers::kAuto});
      },
      "LS-WORKER-ORDER", {"kMean", "kAuto"});
}

}  // namespace
}  // namespace lockstep::moved_buffers
