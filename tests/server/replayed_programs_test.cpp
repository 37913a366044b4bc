// Replays of programs that restore inside of coordinate(), train by a Trainer, or pass results on within a round.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/core/log.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/trainer.h"
#include "tests/server/replayed_run.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::EnvironmentScope;
using testing::expect_error;
using testing::RecordedProgram;
using testing::State;
using torch::Tensor;

class ReplayedPrograms : public testing::ReplayTest {
 protected:
  /// Schedules ten steps, saves, schedules more of them, and restores.
  State save_and_restore(int more, bool* was_stopped = nullptr) {
    RecordedProgram program({.record = file(), .workers = 3, .seed = 7});
    const Checkpoint checkpoint(program.strategy);
    const auto train = program.strategy.step("train", program.train);
    const int code = program.strategy.coordinate([&](Coordinator& coordinator) {
      for (int k = 0; k < 10; ++k) coordinator.schedule(train);
      checkpoint.save(path("mid"));
      try {
        for (int k = 0; k < more; ++k) coordinator.schedule(train);
        coordinator.join();
      } catch (const CancelledError& error) {
        EXPECT_EQ(error.code(), "LS-REPLAY-STOP");
        if (was_stopped) *was_stopped = true;
      }
      checkpoint.restore(path("mid"));
      for (int k = 0; k < 5; ++k) coordinator.schedule(train);
    });
    EXPECT_EQ(code, 0);
    program.strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(train); });
    return program.state();
  }
};

TEST_F(ReplayedPrograms, SaveAndRestore) {
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(), std::optional<int64_t>(0)}) {
    expect_same({.staleness = staleness, .workers = 3, .seed = 7}, [&](RecordedProgram& program) {
      Checkpoint checkpoint(program.strategy);
      const auto train = program.strategy.step("train", program.train);
      program.strategy.coordinate([&](Coordinator& coordinator) {
        const auto some = [&] {
          for (int k = 0; k < 15; ++k) {
            coordinator.schedule(train);
            if (k % 4 == 1) static_cast<void>(program.seen.read());
          }
        };
        some();
        checkpoint.save(path("mid"));
        some();
        static_cast<void>(program.seen.read());
        checkpoint.save(path("late"));
        checkpoint.restore(path("mid"));
        EXPECT_EQ(coordinator.steps(), 15);
        some();
        coordinator.join();
        EXPECT_EQ(coordinator.steps(), 30);
      });
      State saved = program.state();
      checkpoint.restore(path("late"));
      return saved;
    });
  }
}

TEST_F(ReplayedPrograms, DepartWhereTheyRestoreAfterOtherSteps) {
  const State original = save_and_restore(10);
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
  EXPECT_TRUE(testing::are_equal(save_and_restore(10), original));
  expect_error<DivergenceError>([&] { save_and_restore(7); }, "LS-REPLAY-DEPARTS", {"'train'"});
  expect_error<DivergenceError>([&] { save_and_restore(11); }, "LS-REPLAY-DEPARTS", {"ended"});
}

TEST_F(ReplayedPrograms, StopAtAStepAlsoWhereTheyRestoreThen) {
  save_and_restore(10);
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
  const EnvironmentScope until("LOCKSTEP_REPLAY_UNTIL", "12");
  bool was_stopped = false;
  save_and_restore(10, &was_stopped);
  EXPECT_TRUE(was_stopped);
}

TEST_F(ReplayedPrograms, DifferWhereTheyRestoreAnotherCheckpoint) {
  const auto run = [&](const char* name) {
    RecordedProgram program({.record = file(), .workers = 2, .seed = 7});
    const Checkpoint checkpoint(program.strategy);
    const auto train = program.strategy.step("train", program.train);
    program.strategy.coordinate([&](Coordinator& coordinator) {
      for (const char* each : {"early", "late"}) {
        for (int k = 0; k < 4; ++k) coordinator.schedule(train);
        checkpoint.save(path(each));
      }
      checkpoint.restore(path(name));
      coordinator.schedule(train);
    });
  };
  run("early");
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
  run("early");
  expect_error<UsageError>([&] { run("late"); }, "LS-REPLAY-DIFFERS", {"4", "8", "values"});
}

TEST_F(ReplayedPrograms, DifferByTheirLearningRates) {
  const auto run = [&](double rate) {
    RecordedProgram program({.record = file(), .workers = 2, .seed = 7});
    program.optimizer.set_learning_rate(rate);
    const auto train = program.strategy.step("train", program.train);
    program.strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(train); });
  };
  run(0.1);
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
  run(0.1);
  expect_error<UsageError>([&] { run(0.2); }, "LS-REPLAY-DIFFERS", {"learning rates"});
}

TEST_F(ReplayedPrograms, AreToldThatRunsOfTheRecordWereNotRepeated) {
  std::string told;
  const auto run = [&](int runs) {
    RecordedProgram program({.record = file(), .workers = 2});
    const auto train = program.strategy.step("train", program.train);
    for (int k = 0; k < runs; ++k)
      program.strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(train); });
  };
  run(3);
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
  set_log_sink([&](LogLevel, std::string_view line) { told += std::string(line) + "\n"; });
  run(3);
  EXPECT_EQ(told.find("has repeated"), std::string::npos) << told;
  run(2);
  set_log_sink({});
  EXPECT_NE(told.find("3 runs"), std::string::npos) << told;
  EXPECT_NE(told.find("has repeated 2"), std::string::npos) << told;
}

TEST_F(ReplayedPrograms, PassResultsOnBetweenPartsOfARound) {
  expect_same({.staleness = 0, .workers = 3, .seed = 7}, [&](RecordedProgram& program) {
    State seen;
    const Checkpoint checkpoint(program.strategy);
    const auto train = program.strategy.step("train", program.train);
    const auto half = program.strategy.step("half", [&](WorkerContext& ctx, const Tensor& loss) {
      testing::dawdle();
      program.seen.assign(ctx, program.seen.value(ctx) / 2 + loss);
      return (loss * 2).detach();
    });
    program.strategy.coordinate([&](Coordinator& coordinator) {
      std::vector<RemoteValue<Tensor>> values;
      const auto round = [&](const RemoteValue<Tensor>* last) {
        values.push_back(coordinator.schedule(train));
        const RemoteValue<Tensor> twice = coordinator.schedule(half, last ? *last : values.back());
        values.push_back(coordinator.schedule(half, twice));  // of the same round
      };
      for (int k = 0; k < 8; ++k) round(nullptr);
      checkpoint.save(path("mid"));
      for (int k = 0; k < 8; ++k) round(nullptr);
      coordinator.schedule(train);  // a round that is not full
      const Tensor before = values.back().get();
      checkpoint.restore(path("mid"));
      const RemoteValue<Tensor> last = values.back();
      round(&last);  // the result of a step of before the restore
      for (int k = 0; k < 4; ++k) round(nullptr);
      seen = coordinator.get(values);
      EXPECT_TRUE(torch::equal(before, last.get()));
    });
    return seen;
  });
}

/// Steps that took too long in the recorded run are run twice in the replay too: both runs have taken a batch.
TEST_F(ReplayedPrograms, GiveStepsToAnotherWorkerAgain) {
  expect_same({.workers = 3, .seed = 7, .timeouts = {.step = std::chrono::milliseconds(40)}, .attempts = 1000},
              [](RecordedProgram& program) {
                auto data = program.strategy.distribute_to_workers([](const InputContext& input) {
                  const Tensor x = torch::arange(200).to(torch::kFloat) + 1000.0 * double(input.input_pipeline_id);
                  return data::from_tensors(x.view({200, 1}), x).batch(2);
                });
                const bool is_replay = std::getenv("LOCKSTEP_REPLAY") != nullptr;
                std::mutex mutex;
                std::atomic<bool> over = false;               // however the run ends
                std::map<int64_t, std::pair<int, int>> runs;  // of each step: begun, and ended
                const auto take = program.strategy.step("take", [&](WorkerContext& ctx) {
                  const Tensor sum = data.next(ctx).input.sum();
                  const Tensor before = program.seen.value(ctx);  // so that no run of a step waits for another one
                  const auto of_this = [&] {
                    const std::lock_guard<std::mutex> lock(mutex);
                    return runs[ctx.step()];
                  };
                  const bool is_first = [&] {
                    const std::lock_guard<std::mutex> lock(mutex);
                    return runs[ctx.step()].first++ == 0;
                  }();
                  while (!is_replay && is_first && ctx.step() % 20 == 4 && of_this().second == 0 && !over)
                    testing::dawdle();
                  program.seen.assign(ctx, program.seen.value(ctx) * 0.75 + sum);
                  ctx.push();
                  const std::lock_guard<std::mutex> lock(mutex);
                  ++runs[ctx.step()].second;
                  return sum;
                });
                State seen;
                program.strategy.coordinate([&](Coordinator& coordinator) {
                  const std::shared_ptr<void> ends(nullptr, [&](void*) { over = true; });
                  std::vector<RemoteValue<Tensor>> values;
                  for (int k = 0; k < 30; ++k) values.push_back(coordinator.schedule(take));
                  seen = coordinator.get(values);
                });
                // The replay has no run that was still going on when the recorded run ended.
                for (const int64_t step : {4, 24}) EXPECT_GE(runs[step].first, is_replay ? 1 : 2) << step;
                return seen;
              });
}

/// Trains by a Trainer, and gives what it tells after each step.
State fitted(RecordedProgram& program, bool* has_ended = nullptr) {
  State told;
  Trainer trainer(program.strategy, program.model, program.optimizer,
                  {.loss = [](const Tensor& output, const Batch& batch) {
                    return torch::nn::functional::cross_entropy(output, batch.target);
                  }});
  trainer.fit(program.data, {.epochs = 2,
                             .validation = program.strategy.distribute(testing::some_samples(9), {.global_batch = 4}),
                             .callbacks = {callbacks::each_step([&](Trainer&, const Logs& logs) {
                               told.push_back(torch::tensor(logs.at("loss")));
                               told.push_back(program.model.variables().front().read());
                             })}});
  if (has_ended) *has_ended = true;
  return told;
}

TEST_F(ReplayedPrograms, FitByATrainer) {
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(), std::optional<int64_t>(0)}) {
    expect_same({.staleness = staleness, .workers = 3, .seed = 7}, [](RecordedProgram& program) {
      State told = fitted(program);
      EXPECT_EQ(told.size(), 2 * 2 * 15) << "two values of each step";
      return told;
    });
  }
}

TEST_F(ReplayedPrograms, FitOnOtherDataIsNamed) {
  const auto run = [&](bool shuffles) {
    RecordedProgram program({.record = file(), .seed = 7});
    program.data = program.strategy.distribute(testing::some_samples(60), {.global_batch = 4, .shuffle = shuffles});
    fitted(program);
  };
  run(true);
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
  testing::expect_error<DivergenceError>([&] { run(false); }, "LS-REPLAY-DEPARTS", {"Trainer", "has taken other data"});
}

TEST_F(ReplayedPrograms, StopInTheFitOfATrainer) {
  const auto run = [&] {
    RecordedProgram program({.record = file(), .workers = 3, .seed = 7});
    bool has_ended = false;
    fitted(program, &has_ended);
    EXPECT_TRUE(has_ended);
    return program.state();
  };
  const State whole = run();
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
  const EnvironmentScope until("LOCKSTEP_REPLAY_UNTIL", "9");
  const State stopped = run();
  EXPECT_FALSE(testing::are_equal(stopped, whole));
  EXPECT_TRUE(testing::are_equal(run(), stopped));
}

}  // namespace
}  // namespace lockstep
