// Runs that are repeated by their records.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/server/record/run_record.h"
#include "tests/server/replayed_run.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::EnvironmentScope;
using testing::expect_error;
using testing::losses_of;
using testing::RecordedProgram;
using testing::State;
using torch::Tensor;

class Replay : public testing::ReplayTest {};

std::string text_of_file(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Adds the results of steps; of those that were closed zero.
void add_results(const std::vector<RemoteValue<Tensor>>& values, State& seen) {
  for (const RemoteValue<Tensor>& one : values) {
    try {
      seen.push_back(one.get());
    } catch (const CancelledError&) {
      seen.push_back(torch::zeros({}));
    }
  }
}

TEST_F(Replay, GivesTheBitsOfAnAsynchronousRun) {
  for (const int64_t workers : {2, 3, 5}) {
    expect_same({.workers = workers, .seed = 7}, [](RecordedProgram& program) { return losses_of(program, 80); });
  }
}

TEST_F(Replay, GivesTheBitsOfARunWithBoundedStaleness) {
  expect_same({.staleness = 1, .workers = 3}, [](RecordedProgram& program) { return losses_of(program, 60); });
}

TEST_F(Replay, GivesTheBitsOfARunInStep) {
  expect_same({.staleness = 0, .workers = 3}, [](RecordedProgram& program) { return losses_of(program, 31); });
}

TEST_F(Replay, RepeatsWhatTheProgramReadsAndChangesBetweenSteps) {
  expect_same({.workers = 3, .seed = 7}, [](RecordedProgram& program) {
    State read;
    const auto train = program.strategy.step("train", program.train);
    program.strategy.coordinate([&](Coordinator& coordinator) {
      for (int k = 0; k < 40; ++k) {
        coordinator.schedule(train);
        // A read sees the steps that count so far, whichever these are; a change waits for all.
        if (k % 7 == 3) read.push_back(program.model.variables().front().read());
        if (k == 20) program.optimizer.set_learning_rate(0.03);
        if (k % 10 == 9) program.model.variables().front().assign(read.back() * 0.5);
      }
    });
    return read;
  });
}

TEST_F(Replay, RepeatsAnErrorAndTheStepsAfterIt) {
  for (int round = 0; round < 3; ++round) {
    expect_same({.workers = 3, .seed = 7}, [](RecordedProgram& program) {
      State seen;
      const auto train = program.strategy.step("train", program.train);
      const auto bad = program.strategy.step("bad", [&](WorkerContext& ctx) {
        testing::dawdle();
        const Tensor sum = program.seen.value(ctx);
        throw std::invalid_argument("bad after " + std::to_string(sum.item<int64_t>()));
      });
      program.strategy.coordinate([&](Coordinator& coordinator) {
        for (int error = 0; error < 3; ++error) {
          std::vector<RemoteValue<Tensor>> values;
          try {
            for (int k = 0; k < 40; ++k) {
              if (k == 10) coordinator.schedule(bad);
              values.push_back(coordinator.schedule(train));
            }
            coordinator.join();
            ADD_FAILURE() << "no error came";
          } catch (const ReplicaError& thrown) {
            seen.push_back(torch::tensor(std::stoi(thrown.messages().front().substr(10))));
            seen.push_back(torch::tensor(static_cast<int64_t>(values.size())));
          }
          add_results(values, seen);
        }
      });
      return seen;
    });
  }
}

TEST_F(Replay, RepeatsStepsThatWereCancelled) {
  expect_same({.workers = 3, .seed = 7}, [](RecordedProgram& program) {
    State seen;
    const auto train = program.strategy.step("train", program.train);
    program.strategy.coordinate([&](Coordinator& coordinator) {
      for (int time = 0; time < 4; ++time) {
        std::vector<RemoteValue<Tensor>> values;
        for (int k = 0; k < 15; ++k) values.push_back(coordinator.schedule(train));
        testing::dawdle();
        coordinator.cancel();
        add_results(values, seen);
      }
    });
    return seen;
  });
}

/// Sums what workers take from their own streams, until these end.
State sums_of_streams(RecordedProgram& program, bool with_cancel) {
  auto data = program.strategy.distribute_to_workers([](const InputContext& input) {
    const Tensor x = torch::arange(20).to(torch::kFloat) + 100.0 * static_cast<double>(input.input_pipeline_id);
    return data::from_tensors(x.view({20, 1}), x).batch(2);
  });
  State seen;
  const auto take = program.strategy.step("take", [&](WorkerContext& ctx) {
    testing::dawdle();
    const Tensor sum = data.next(ctx).input.sum();
    testing::dawdle();
    program.seen.assign(ctx, program.seen.value(ctx) * 0.75 + sum);
    ctx.push();
    return sum + 1000 * ctx.worker_index();
  });
  program.strategy.coordinate([&](Coordinator& coordinator) {
    std::vector<RemoteValue<Tensor>> values;
    try {
      for (int k = 0; k < 100; ++k) {
        values.push_back(coordinator.schedule(take));
        if (with_cancel && k % 8 == 7) coordinator.cancel();
        if (k % 16 == 15) coordinator.join();
      }
    } catch (const EndOfStream&) {
      seen.push_back(torch::tensor(static_cast<int64_t>(values.size())));
    }
    for (const RemoteValue<Tensor>& one : values) {
      try {
        seen.push_back(one.get());
      } catch (const EndOfStream&) {
        seen.push_back(torch::ones({}));
      } catch (const CancelledError&) {
        seen.push_back(torch::zeros({}));
      }
    }
  });
  return seen;
}

TEST_F(Replay, GivesEachWorkerTheBatchesOfItsOwnStream) {
  for (const bool with_cancel : {false, true}) {
    expect_same({.workers = 3}, [&](RecordedProgram& program) { return sums_of_streams(program, with_cancel); });
  }
}

TEST_F(Replay, RepeatsSeveralRunsOfOneProgram) {
  expect_same({.workers = 2}, [](RecordedProgram& program) {
    const auto train = program.strategy.step("train", program.train);
    for (int run = 0; run < 3; ++run) {
      program.strategy.coordinate([&](Coordinator& coordinator) {
        for (int k = 0; k < 10; ++k) coordinator.schedule(train);
      });
      program.model.variables().front().assign_add(torch::full({8, 6}, 0.01));
    }
    return State();
  });
}

TEST_F(Replay, PassesResultsOfStepsOn) {
  expect_same({.workers = 3}, [](RecordedProgram& program) {
    const auto train = program.strategy.step("train", program.train);
    const auto half = program.strategy.step("half", [&](WorkerContext& ctx, const Tensor& loss) {
      program.seen.assign(ctx, program.seen.value(ctx) / 2 + loss);
    });
    program.strategy.coordinate([&](Coordinator& coordinator) {
      for (int k = 0; k < 30; ++k) coordinator.schedule(half, coordinator.schedule(train));
    });
    return State();
  });
}

TEST_F(Replay, RepeatsWhatEvaluationsSeeBetweenSteps) {
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(), std::optional<int64_t>(0)}) {
    expect_same({.staleness = staleness, .workers = 3, .seed = 7}, [](RecordedProgram& program) {
      State seen;
      const auto held_out = program.strategy.distribute(testing::some_samples(20), {.global_batch = 4, .name = "held"});
      const auto train = program.strategy.step("train", program.train);
      program.strategy.coordinate([&](Coordinator& coordinator) {
        for (int k = 0; k < 24; ++k) {
          coordinator.schedule(train);
          if (k % 6 == 2) seen.push_back(program.model.variables().front().read());
          if (k % 6 != 5) continue;
          seen.push_back(coordinator.evaluate(held_out, [&](WorkerContext& ctx, const Batch& part) {
            testing::dawdle();
            program.seen.assign_add(ctx, torch::ones({}));
            return program.model(ctx)->forward(part.input).mean();
          }));
          seen.push_back(program.seen.read());
        }
      });
      return seen;
    });
  }
}

TEST_F(Replay, EndsAfterTheStepThatIsAskedFor) {
  const auto run = [&](int steps) {
    RecordedProgram program({.record = file(), .workers = 3, .seed = 7});
    const auto train = program.strategy.step("train", program.train);
    const int code = program.strategy.coordinate([&](Coordinator& coordinator) {
      for (int k = 0; k < steps; ++k) {
        coordinator.schedule(train);
        coordinator.join();  // so that the next one sees it, and the state after each is known
      }
    });
    EXPECT_EQ(code, 0);
    return program.state();
  };
  const State after_12 = run(12);
  run(30);
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
  const EnvironmentScope until("LOCKSTEP_REPLAY_UNTIL", "11");
  EXPECT_TRUE(testing::are_equal(run(30), after_12));
}

TEST_F(Replay, EndsWhereATornRecordDoes) {
  {
    RecordedProgram program({.record = file(), .workers = 3, .seed = 7});
    losses_of(program, 30);
  }
  const std::string whole = text_of_file(file());
  for (const std::size_t size : {whole.size() - 1, whole.size() - 14, whole.size() * 3 / 4}) {
    write("torn.rec", whole.substr(0, size));
    const internal::ReplayRecord record = internal::read_record(path("torn.rec"));
    EXPECT_FALSE(record.torn.empty());
    ASSERT_EQ(record.runs.size(), 1U);
    EXPECT_FALSE(record.runs.front().is_whole);
    const EnvironmentScope replay("LOCKSTEP_REPLAY", path("torn.rec").c_str());
    RecordedProgram program({.workers = 3, .seed = 7});
    const auto train = program.strategy.step("train", program.train);
    bool has_stopped = false;
    const int code = program.strategy.coordinate([&](Coordinator& coordinator) {
      for (int k = 0; k < 31; ++k) coordinator.schedule(train);
      try {
        coordinator.join();
      } catch (const CancelledError& error) {
        EXPECT_EQ(error.code(), "LS-REPLAY-STOP");
        has_stopped = true;
        throw;
      }
    });
    EXPECT_EQ(code, 0);
    EXPECT_TRUE(has_stopped);
    EXPECT_EQ(program.seen.read().item<double>(), static_cast<double>(record.runs.front().events.size()));
  }
}

TEST_F(Replay, RefusesAnotherProgramAndSaysWhatDiffers) {
  const auto run = [&](const ParameterServerOptions& options, const std::string& step) {
    RecordedProgram program(options);
    const auto train = program.strategy.step(step, program.train);
    program.strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(train).get(); });
  };
  run({.record = file(), .workers = 2, .seed = 7}, "train");
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
  run({.workers = 2, .seed = 7}, "train");
  const auto expect = [&](const ParameterServerOptions& options, const std::string& step,
                          std::initializer_list<std::string_view> values) {
    expect_error<UsageError>([&] { run(options, step); }, "LS-REPLAY-DIFFERS", values);
  };
  expect({.workers = 2, .seed = 8}, "train", {"seed", "7", "8", "values"});
  expect({.workers = 3, .seed = 7}, "train", {"workers", "2", "3"});
  expect({.workers = 2, .servers = 2, .seed = 7}, "train", {"servers"});
  expect({.staleness = 4, .workers = 2, .seed = 7}, "train", {"staleness", "4"});
  expect({.workers = 2, .seed = 7}, "learn", {"steps", "train", "learn"});
}

TEST_F(Replay, SaysWhereAProgramDeparts) {
  const auto run = [&](int steps, int odd_step) {
    RecordedProgram program({.record = file(), .workers = 2, .seed = 7});
    const auto train = program.strategy.step("train", [&](WorkerContext& ctx) {
      if (ctx.step() == odd_step) program.seen.assign_add(ctx, torch::ones({}));
      return program.train(ctx);
    });
    program.strategy.coordinate([&](Coordinator& coordinator) {
      for (int k = 0; k < steps; ++k) coordinator.schedule(train);
    });
  };
  run(20, -1);
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
  run(20, -1);
  expect_error<DivergenceError>([&] { run(20, 13); }, "LS-REPLAY-DEPARTS", {"step 13", "pushed"});
  expect_error<DivergenceError>([&] { run(19, -1); }, "LS-REPLAY-DEPARTS", {"step 19"});
  expect_error<DivergenceError>([&] { run(21, -1); }, "LS-REPLAY-DEPARTS", {"ended"});
}

TEST_F(Replay, SaysWhereTheDataDiffer) {
  const auto run = [&](double factor) {
    RecordedProgram program({.record = file(), .workers = 1});  // several count their steps in any order
    Tensor x = torch::ones({40, 6});
    x.slice(0, 20).fill_(factor);  // from the sixth batch on
    program.data =
        program.strategy.distribute(data::from_tensors(x, torch::ones({40}, torch::kLong)), {.global_batch = 4});
    losses_of(program, 10);
  };
  run(1);
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file().c_str());
  expect_error<DivergenceError>([&] { run(2); }, "LS-REPLAY-DEPARTS", {"step 5", "data"});
}

TEST_F(Replay, TakesSixteenBytesForAStepAtMost) {
  RecordedProgram program({.record = file(), .workers = 2});
  losses_of(program, 400);
  EXPECT_LE(std::filesystem::file_size(file()), 1500 + 400 * 16);
}

TEST_F(Replay, TellsAtOnceThatARecordCannotBeWritten) {
  for (const std::string& bad : {path("no/such/folder/run.rec"), std::string("/dev/null"), path(".")}) {
    RecordedProgram program({.record = bad});
    bool has_begun = false;
    expect_error<DataError>([&] { program.strategy.coordinate([&](Coordinator&) { has_begun = true; }); }, "LS-FILE",
                            {"'" + bad + "'"});
    EXPECT_FALSE(has_begun);
  }
}

}  // namespace
}  // namespace lockstep
