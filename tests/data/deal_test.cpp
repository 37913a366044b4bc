// How data sets and streams are dealt: padding, reading ahead, sharding, errors, on several workers too.
#include "lockstep/data/deal.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>
#include <thread>

#include "tests/data/records_in_memory.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using testing::numbers_in;
using testing::run_workers;
using testing::WorkersCase;
using Numbers = std::vector<int64_t>;

Dataset numbers(int64_t count) {
  return data::from_tensors(torch::arange(count).to(torch::kFloat).view({count, 1}), torch::arange(count));
}

Numbers targets_of(const Batch& part) {
  const torch::Tensor targets = part.target.contiguous();
  return {targets.data_ptr<int64_t>(), targets.data_ptr<int64_t>() + targets.numel()};
}

/// The targets of the rest of an epoch, by step and replica.
using Steps = std::vector<std::vector<Numbers>>;
Steps steps_of(const DistributedDataset& data, int64_t epoch) {
  Steps steps;
  for (const auto& batch : data.epoch(epoch)) {
    auto& replicas = steps.emplace_back();
    for (const Batch& part : batch) replicas.push_back(targets_of(part));
  }
  return steps;
}

/// What several workers got, as one worker would have got it.
Steps joined(const std::vector<Steps>& workers) {
  Steps all = workers.front();
  for (std::size_t w = 1; w < workers.size(); ++w) {
    EXPECT_EQ(workers[w].size(), all.size()) << "all workers make the same steps";
    for (std::size_t step = 0; step < std::min(all.size(), workers[w].size()); ++step)
      all[step].insert(all[step].end(), workers[w][step].begin(), workers[w][step].end());
  }
  return all;
}

Numbers sorted(const Steps& steps) {
  Numbers all;
  for (const auto& step : steps) {
    for (const Numbers& part : step) all.insert(all.end(), part.begin(), part.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

Numbers up_to(int64_t count) {
  Numbers all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(Padding, FillsTheLastBatchUpWithRowsOfWeightZero) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 3});
  const auto data = strategy.distribute(numbers(8), {.global_batch = 6, .remainder = Remainder::kPad});
  EXPECT_EQ(data.steps_per_epoch(), 2);
  auto it = data.epoch(0).begin();
  EXPECT_EQ(it->begin()->padding, 0);
  ++it;
  const PerReplica<Batch>& last = *it;
  EXPECT_EQ(data.cursor().position, 8);
  for (const Batch& part : last) {
    EXPECT_EQ(part.size(), 2);
    EXPECT_EQ(part.global_size, 2) << "true samples only";
  }
  EXPECT_EQ(last[0].samples(), 2);
  EXPECT_EQ(last[1].samples(), 0);
  EXPECT_TRUE(torch::equal(last[1].ids, torch::tensor({-1, -1}, torch::kLong)));
  EXPECT_TRUE(torch::equal(last[2].target, torch::tensor({-100, -100})));
  EXPECT_TRUE(torch::equal(last[2].weights(), torch::zeros({2})));
  EXPECT_EQ(last[0].mean(torch::tensor({1.0, 3.0})).item<double>(), 2);
  expect_error<UsageError>([&] { last[0].mean(torch::zeros({3})); }, "LS-BATCH", {"[3]", "2 rows"});
  EXPECT_TRUE(data.ledger()[0].has_each_once(8));
  EXPECT_FALSE(data.ledger()[0].has_each_once(9));
}

/// The gradient of a linear layer over an epoch, where padding is in the last batch.
template <class Loss>
torch::Tensor gradient(int64_t replicas, Remainder remainder, const Loss& loss) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = replicas, .seed = 1});
  auto model = strategy.make_module([] { return torch::nn::Linear(1, 7); });
  auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.01));
  const auto data = strategy.distribute(
      data::from_tensors(torch::rand({7, 1}, at::make_generator<at::CPUGeneratorImpl>(3)), torch::arange(7)),
      {.global_batch = 5, .remainder = remainder});
  for (const auto& batch : data.epoch(0)) {
    strategy.run(batch, [&](ReplicaContext& ctx, const Batch& b) {
      ctx.scale_loss(loss(b, model(ctx)->forward(b.input))).backward();
      optimizer.step(ctx);
    });
  }
  return model.variables().front().read();
}

TEST(Padding, ChangesNoGradient) {
  const auto plain = [](const Batch& b, const torch::Tensor& out) {
    return torch::nn::functional::cross_entropy(out, b.target);
  };
  const auto by_rows = [](const Batch& b, const torch::Tensor& out) {
    return b.mean((out - b.target.clamp_min(0).view({-1, 1})).pow(2).mean(1));
  };
  for (const int64_t replicas : {1, 2, 3, 5}) {
    EXPECT_TRUE(torch::allclose(gradient(replicas, Remainder::kPad, plain), gradient(1, Remainder::kKeep, plain)));
    EXPECT_TRUE(torch::allclose(gradient(replicas, Remainder::kPad, by_rows), gradient(1, Remainder::kKeep, by_rows)));
  }
}

class Ahead : public ::testing::TestWithParam<int64_t> {};

TEST_P(Ahead, GivesTheSameStepsAndMovesNoCursor) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const DistributeOptions options{.global_batch = 4, .shuffle = true, .seed = 5};
  DistributeOptions ahead = options;
  ahead.prefetch = 3;
  ahead.threads = GetParam();
  const auto noisy = numbers(30).map([](Batch sample) {
    sample.input = torch::rand({1, 2});
    return sample;
  });
  const auto data = strategy.distribute(noisy, ahead);
  auto plain = strategy.distribute(noisy, options).epoch(1).begin();
  int64_t position = 0;
  for (const auto& batch : data.epoch(1)) {
    position += batch.begin()->global_size;
    EXPECT_EQ(data.cursor().position, position);
    for (const ReplicaId r : {0, 1}) EXPECT_TRUE(torch::equal(batch[r].input, (*plain)[r].input));
    ++plain;
  }
  EXPECT_TRUE(plain == std::default_sentinel);
  EXPECT_EQ(steps_of(strategy.distribute(numbers_in({9, 4}), ahead), 0),
            steps_of(strategy.distribute(numbers_in({9, 4}), options), 0));
}

TEST_P(Ahead, EndsInTheMiddleAndCopiesReadForThemselves) {
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto data = strategy.distribute(numbers(100), {.global_batch = 2, .prefetch = 4, .threads = GetParam()});
  auto it = data.epoch(0).begin();
  ++it;
  const auto copy = it;
  ++it;
  auto other = copy;
  ++other;
  EXPECT_EQ(targets_of(*other->begin()), targets_of(*it->begin()));
  EXPECT_EQ(targets_of(*copy->begin()), (Numbers{2, 3}));
  other = it;
  ++other;
  EXPECT_EQ(targets_of(*other->begin()), (Numbers{6, 7}));
}

TEST_P(Ahead, BringsErrorsAtTheirStepAndTriesAgain) {
  const auto tries = std::make_shared<std::atomic<int>>(0);
  const Dataset flaky = numbers(20).map([tries](Batch sample) {
    if (sample.ids.item<int64_t>() == 9 && ++*tries == 1) throw std::runtime_error("the disk is busy");
    return sample;
  });
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto data = strategy.distribute(flaky, {.global_batch = 4, .prefetch = 8, .threads = GetParam()});
  auto it = data.epoch(0).begin();
  ++it;
  expect_error<DataError>([&] { ++it; }, "LS-MAP", {"sample 9"});
  EXPECT_EQ(targets_of(*it->begin()), (Numbers{4, 5, 6, 7})) << "where it was";
  EXPECT_EQ(data.cursor().position, 8);
  ++it;
  EXPECT_EQ(targets_of(*it->begin()), (Numbers{8, 9, 10, 11}));
}

TEST_P(Ahead, ReadsNoMoreThanItMay) {
  const auto read = std::make_shared<std::atomic<int64_t>>(0);
  const Dataset counted = numbers(1000).map_rows([read](Batch rows) {
    *read += rows.size();
    return rows;
  });
  MirroredStrategy strategy({.devices = lanes(1)});
  {
    const auto data = strategy.distribute(counted.prefetch(5), {.global_batch = 1, .threads = GetParam()});
    auto it = data.epoch(0).begin();
    ++it;
    EXPECT_NE(data.describe().find("up to 5 steps are read ahead"), std::string::npos) << data.describe();
  }
  EXPECT_LE(*read, 7) << "two were taken, and five read ahead";
}

INSTANTIATE_TEST_SUITE_P(OnThreads, Ahead, ::testing::Values(1, 3));

TEST(Streams, AreDealtInBlocksWhateverTheWorkers) {
  for (const Sharding sharding : {Sharding::kAuto, Sharding::kData, Sharding::kFile}) {
    for (const bool shuffle : {false, true}) {
      for (const Remainder remainder : {Remainder::kKeep, Remainder::kDrop, Remainder::kPad}) {
        const DistributeOptions options{.global_batch = 5,
                                        .shuffle = shuffle,
                                        .seed = 2,
                                        .remainder = remainder,
                                        .sharding = sharding,
                                        .prefetch = 2};
        const auto on = [&](int64_t workers) {
          return joined(run_workers(WorkersCase{workers, 4}, [&](Strategy& strategy) {
            return steps_of(strategy.distribute(numbers_in({6, 2, 9, 3, 3}), options), 1);
          }));
        };
        const Steps one = on(1);
        EXPECT_EQ(on(2), one);
        EXPECT_EQ(on(4), one);
        Numbers all = sorted(one);
        if (remainder == Remainder::kPad) std::erase(all, -100);
        if (remainder != Remainder::kDrop) {
          EXPECT_EQ(all, up_to(23));
        }
        if (sharding == Sharding::kData) {
          EXPECT_EQ(one.size(), remainder == Remainder::kDrop ? 4u : 5u);
        }
      }
    }
  }
}

TEST(Streams, OpenOnlyTheFilesOfTheirReplicas) {
  const auto opened = run_workers(WorkersCase{2, 2}, [&](Strategy& strategy) {
    const auto files = testing::files_of({2, 2, 2, 2});
    steps_of(strategy.distribute(data::from_records(files, testing::parse_number), {.global_batch = 2}), 0);
    return files->opened.load();
  });
  EXPECT_EQ(opened, (std::vector<int64_t>{2, 2}));
}

TEST(Streams, ContinueAtTheVeryNextSampleOnOtherWorkers) {
  for (const Sharding sharding : {Sharding::kData, Sharding::kFile}) {
    const DistributeOptions options{.global_batch = 6, .shuffle = true, .seed = 3, .sharding = sharding, .prefetch = 1};
    const auto stream = [] { return numbers_in({7, 3, 8, 5}, {.cycle_length = 2}).shuffle(4).batch(2); };
    const auto rest = [&](int64_t workers, const data::Cursor& from) {
      return joined(run_workers(WorkersCase{workers, 3}, [&](Strategy& strategy) {
        const auto data = strategy.distribute(stream(), options);
        data.seek(data::cursor_from_json(data::to_json(from)));
        EXPECT_EQ(data.cursor(), from);
        Steps steps = steps_of(data, 1);
        for (auto& step : steps_of(data, 2)) steps.push_back(std::move(step));
        return steps;
      }));
    };
    std::vector<data::Cursor> cursors;
    Steps whole;
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 3, .seed = 3});
    const auto data = strategy.distribute(stream(), options);
    for (const int64_t epoch : {1, 2}) {
      for (const auto& batch : data.epoch(epoch)) {
        auto& step = whole.emplace_back();
        for (const Batch& part : batch) step.push_back(targets_of(part));
        cursors.push_back(data.cursor());
      }
    }
    for (std::size_t stop = 0; stop < cursors.size(); ++stop) {
      const Steps expected(whole.begin() + static_cast<std::ptrdiff_t>(stop) + 1, whole.end());
      EXPECT_EQ(rest(1 + static_cast<int64_t>(stop % 3), cursors[stop]), expected) << "stopped after step " << stop;
    }
  }
}

TEST(Streams, OffGivesEachWorkerAll) {
  const auto all = run_workers(WorkersCase{2, 3}, [](Strategy& strategy) {
    return std::pair{
        steps_of(strategy.distribute(numbers_in({5, 4}), {.global_batch = 3, .sharding = Sharding::kOff}), 0),
        steps_of(strategy.distribute(numbers(7), {.global_batch = 3, .sharding = Sharding::kOff}), 0)};
  });
  EXPECT_EQ(sorted(all[0].first), up_to(9));
  EXPECT_EQ(sorted(all[1].first), up_to(9));
  EXPECT_EQ(all[0].first.size(), 9u) << "the slower one reads one sample a step";
  EXPECT_EQ(all[1].first.size(), 9u);
  EXPECT_EQ(sorted(all[0].second), up_to(7));
  EXPECT_EQ(sorted(all[1].second), up_to(7));
}

TEST(Streams, ThatDifferBetweenWorkersAreFound) {
  testing::expect_error_on_all<DivergenceError>(WorkersCase{2, 2},
                                                [](Strategy& strategy) {
                                                  const int64_t more = strategy.worker_index();
                                                  steps_of(
                                                      strategy.distribute(numbers_in({5}).map([more](Batch sample) {
                                                        sample.input = sample.input + static_cast<double>(more);
                                                        return sample;
                                                      }),
                                                                          {.global_batch = 2}),
                                                      0);
                                                },
                                                "LS-STREAM-DIFFERS", {"worker 1", "worker 0"});
}

TEST(Streams, FailOnAllWorkersTogether) {
  const auto said = run_workers(WorkersCase{2, 2}, [](Strategy& strategy) {
    const int64_t worker = strategy.worker_index();
    const auto data = strategy.distribute(numbers_in({5, 5}).map([worker](Batch sample) {
      if (worker == 1 && sample.target.item<int64_t>() == 8) throw std::runtime_error("no such colour");
      return sample;
    }),
                                          {.global_batch = 2, .sharding = Sharding::kFile});
    std::string code;
    try {
      steps_of(data, 0);
    } catch (const Error& error) {
      code = error.code();
      EXPECT_NE(std::string(error.what()).find("no such colour"), std::string::npos) << error.what();
    }
    return code + " " + std::to_string(data.cursor().position);
  });
  EXPECT_EQ(said, (std::vector<std::string>{"LS-PEER-FAILED 6", "LS-MAP 6"}));
}

TEST(Streams, AreReadByAllWhereABatchHasNoSampleForAReplica) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 3});
  const auto data = strategy.distribute(numbers_in({2, 2, 2}), {.global_batch = 2, .sharding = Sharding::kFile});
  EXPECT_EQ(sorted(steps_of(data, 0)), up_to(6));
  expect_error<UsageError>(
      [&] { strategy.distribute_from_function([](const InputContext&) { return numbers(4); }, {.global_batch = 2}); },
      "LS-OPTION", {"batch of 2", "3 replicas"});
}

TEST(Streams, HaveNoLength) {
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto data = strategy.distribute(numbers_in({3}), {.global_batch = 2});
  expect_error<UsageError>([&] { data.size(); }, "LS-STREAM", {"size()"});
  expect_error<UsageError>([&] { data.steps_per_epoch(); }, "LS-STREAM");
  expect_error<UsageError>([&] { strategy.distribute(numbers_in({3}), {}); }, "LS-OPTION", {".global_batch"});
  expect_error<UsageError>([&] { strategy.distribute(Stream(), {.global_batch = 1}); }, "LS-EMPTY-HANDLE");
  EXPECT_EQ(steps_of(strategy.distribute(numbers_in({0}), {.global_batch = 2}), 0).size(), 0u);
}

TEST(Streams, RefuseACursorOfAnotherShardingOrOfOtherReplicas) {
  MirroredStrategy two({.devices = lanes(1), .replicas = 2, .seed = 3});
  MirroredStrategy four({.devices = lanes(1), .replicas = 4, .seed = 3});
  const auto data = two.distribute(numbers_in({5, 5, 5, 5}), {.global_batch = 2});
  const auto it = data.epoch(0).begin();
  const auto other = four.distribute(numbers_in({5, 5, 5, 5}), {.global_batch = 2});
  expect_error<UsageError>([&] { other.seek(data.cursor()); }, "LS-STATE-MISFIT", {"2 readers"});
  const auto whole = two.distribute(numbers_in({5, 5, 5, 5}), {.global_batch = 2, .sharding = Sharding::kData});
  expect_error<UsageError>([&] { whole.seek(data.cursor()); }, "LS-STATE-MISFIT", {"2 readers"});
  expect_error<DataError>(
      [&] {
        two.distribute(numbers_in({5, 5, 5}), {.global_batch = 2}).seek(data.cursor());
      },
      "LS-DATA-CHANGED", {"4 files"});
}

TEST(Skipping, CountsTheSameOnAllWorkers) {
  const auto reads = [](const std::function<DistributedDataset(Strategy&, const DistributeOptions&)>& distribute) {
    return run_workers(WorkersCase{2, 2}, [&](Strategy& strategy) {
      const auto data = distribute(strategy, {.global_batch = 4, .on_error = OnError::kSkip});
      int64_t samples = 0;
      Steps steps;
      for (const auto& batch : data.epoch(0)) {
        auto& step = steps.emplace_back();
        samples += batch.begin()->global_size;
        for (const Batch& part : batch) step.push_back(targets_of(part));
      }
      return std::pair{steps, std::pair{samples, data.skipped()}};
    });
  };
  const auto bad = [](Batch sample) {
    if (sample.target.item<int64_t>() % 5 == 3) throw std::runtime_error("no such colour");
    return sample;
  };
  for (const auto& results :
       {reads([&](Strategy&s, const DistributeOptions&o) { return s.distribute(numbers(19).map(bad), o); }),
        reads([&](Strategy&s, const DistributeOptions&o) {
          return s.distribute(numbers_in({12, 7}).map(bad), o);
        }),
        reads([&](Strategy&s, const DistributeOptions&o) { return s.distribute(numbers_in({19}).map(bad), o); })}) {
    EXPECT_EQ(results[0].second, (std::pair<int64_t, int64_t>{15, 4}));
    EXPECT_EQ(results[1].second, results[0].second);
    const Numbers all = sorted(joined({results[0].first, results[1].first}));
    EXPECT_EQ(all.size(), 15u);
    EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), 15u);
  }
}

/// Steps of six numbers of which some cannot be read. The map takes the place of a decoder.
Steps skipping(const std::set<int64_t>& bad, DistributeOptions options, int64_t replicas, int64_t skipped) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = replicas});
  options.on_error = OnError::kSkip;
  const auto data = strategy.distribute(numbers(6).map([bad](Batch sample) {
    if (bad.contains(sample.target.item<int64_t>())) throw std::runtime_error("no such colour");
    sample.input = torch::zeros({1, 3});
    return sample;
  }),
                                        options);
  Steps steps;
  for (const auto& batch : data.epoch(0)) {
    auto& step = steps.emplace_back();
    for (const Batch& part : batch) {
      EXPECT_EQ(part.input.sizes(), (Numbers{part.size(), 3}));
      EXPECT_EQ(part.ids.size(0), part.size());
      step.push_back(targets_of(part));
    }
  }
  EXPECT_EQ(data.skipped(), skipped);
  return steps;
}

TEST(Skipping, GoesOnWhereTheFirstSamplesCannotBeRead) {
  EXPECT_EQ(skipping({0}, {.global_batch = 2}, 2, 1), (Steps{{{}, {1}}, {{2}, {3}}, {{4}, {5}}}));
  EXPECT_EQ(skipping({0, 1}, {.global_batch = 2}, 2, 2), (Steps{{{}, {}}, {{2}, {3}}, {{4}, {5}}}));
  EXPECT_EQ(skipping({0, 1}, {.global_batch = 4}, 2, 2), (Steps{{{}, {2, 3}}, {{4}, {5}}}));
  EXPECT_EQ(skipping({0}, {.global_batch = 5}, 2, 1), (Steps{{{1, 2}, {3, 4}}, {{5}, {}}}));
  EXPECT_EQ(skipping({0}, {.global_batch = 4, .remainder = Remainder::kPad}, 4, 1),
            (Steps{{{}, {1}, {2}, {3}}, {{4}, {5}, {-100}, {-100}}}));
  EXPECT_EQ(skipping({0, 4, 5}, {.global_batch = 4, .remainder = Remainder::kPad, .prefetch = 2}, 2, 3),
            (Steps{{{1}, {2, 3}}, {{}, {-100, -100}}}));
}

TEST(Skipping, GivesEmptyBatchesWhereNothingCanBeRead) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  for (const Remainder remainder : {Remainder::kKeep, Remainder::kPad}) {
    const auto data =
        strategy.distribute(numbers(3).map([](Batch) -> Batch { throw std::runtime_error("no such colour"); }),
                            {.global_batch = 2, .remainder = remainder, .on_error = OnError::kSkip});
    int64_t steps = 0;
    for (const auto& batch : data.epoch(0)) {
      ++steps;
      for (const Batch& part : batch) EXPECT_EQ(part.size() + part.global_size, 0);
    }
    EXPECT_EQ(steps, 2);
    EXPECT_EQ(data.skipped(), 3);
  }
}

TEST(ReadingAhead, IsLetGoOfInAForkedChild) {
  MirroredStrategy strategy({.devices = lanes(1)});
  std::atomic<int64_t> calls = 0;
  const auto counted = [&calls](Batch sample) {
    ++calls;
    return sample;
  };
  for (const bool is_stream : {false, true}) {
    calls = 0;
    const DistributeOptions options{.global_batch = 4, .prefetch = 3, .threads = 2};
    const data::MapOptions threads{.threads = 2};
    DistributedDataset data = is_stream ? strategy.distribute(numbers_in({100}).map(counted, threads), options)
                                        : strategy.distribute(numbers(100).map(counted, threads), options);
    auto it = data.epoch(0).begin();
    ++it;
    while (calls < 5 * 4) std::this_thread::yield();  // two steps were taken, and three are ahead
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      it = {};
      data = {};
      _exit(42);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42) << status;
    ++it;
    EXPECT_EQ(targets_of(*it->begin()), (Numbers{8, 9, 10, 11})) << "the parent goes on";
  }
}

bool has(const Strategy& strategy, const std::string& code) {
  const auto findings = strategy.findings();
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& one) { return one.code == code; });
}

TEST(FromFunction, DealsEachWorkersOwn) {
  const auto all = run_workers(WorkersCase{2, 4}, [](Strategy& strategy) {
    const auto data = strategy.distribute_from_function(
        [](const InputContext& context) {
          EXPECT_EQ(context.num_input_pipelines, 2);
          EXPECT_EQ(context.num_replicas_in_sync, 4);
          EXPECT_EQ(context.get_per_replica_batch_size(8), 2);
          expect_error<UsageError>([&] { context.get_per_replica_batch_size(6); }, "LS-OPTION", {"6", "4 replicas"});
          return numbers(13).shard(context.num_input_pipelines, context.input_pipeline_id);
        },
        {.global_batch = 4});
    Steps steps = steps_of(data, 0);
    EXPECT_FALSE(has(strategy, "LS-INPUT-NOT-SHARDED"));
    EXPECT_FALSE(has(strategy, "LS-INPUT-REPEATS"));
    steps_of(data, 1);
    EXPECT_TRUE(has(strategy, "LS-INPUT-REPEATS"));
    return steps;
  });
  EXPECT_EQ(sorted(joined(all)), up_to(13));
  EXPECT_EQ(all[0][0], (std::vector<Numbers>{{0}, {2}}));
}

TEST(FromFunction, IsWatchedForWorkersThatReadTheSame) {
  run_workers(WorkersCase{2, 2}, [](Strategy& strategy) {
    const auto data =
        strategy.distribute_from_function([](const InputContext&) { return numbers(10); }, {.global_batch = 4});
    steps_of(data, 0);
    EXPECT_TRUE(has(strategy, "LS-INPUT-NOT-SHARDED"));
    return 0;
  });
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto elements =
      strategy.distribute_from_function([](const InputContext&) { return numbers_in({10}).batch(3); });
  EXPECT_EQ(steps_of(elements, 0), (Steps{{{0, 1, 2}, {3, 4, 5}}, {{6, 7, 8}, {9}}}));
}

TEST(Run, NoticesReplicasThatWereGivenTheSameSamples) {
  const auto run = [](bool same) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
    const auto batch = strategy.per_replica([&](ReplicaId r) {
      const auto first = same ? 0 : 4 * r.value();
      return Batch{
          .input = torch::arange(first, first + 4).to(torch::kFloat), .target = {}, .ids = {}, .global_size = 8};
    });
    strategy.run(batch, [](ReplicaContext&, const Batch&) {});
    return has(strategy, "LS-INPUT-NOT-SHARDED");
  };
  EXPECT_TRUE(run(true));
  EXPECT_FALSE(run(false));
}

TEST(Ledger, ProvesThatWorkersUsedEachSampleOnce) {
  const auto ledgers = run_workers(WorkersCase{3, 4}, [](Strategy& strategy) {
    const auto data = strategy.distribute(numbers(29), {.global_batch = 7, .shuffle = true});
    steps_of(data, 0);
    steps_of(data, 1);
    return data.ledger();
  });
  ASSERT_EQ(ledgers[0].size(), 2u);
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    const data::LedgerEntry all = ledgers[0][epoch] + ledgers[1][epoch] + ledgers[2][epoch];
    EXPECT_EQ(all.samples, 29);
    EXPECT_TRUE(all.has_each_once(29));
    EXPECT_FALSE(ledgers[0][epoch].has_each_once(29));
  }
  EXPECT_NE(ledgers[0][0].order, ledgers[0][1].order);
}

TEST(Cursors, AreJson) {
  const data::Cursor cursor{.epoch = 3,
                            .position = 7,
                            .size = 9,
                            .seed = ~uint64_t{0},
                            .shuffle = true,
                            .digest = 5,
                            .digest_by_file = 6,
                            .stream = {1, -2}};
  EXPECT_EQ(data::cursor_from_json(data::to_json(cursor)), cursor);
  EXPECT_EQ(data::cursor_from_json(data::to_json(cursor)).digest, 5u);
  for (const std::string& text : {std::string(), std::string("{}"), std::string("[1]"),
                                  std::string(R"({"epoch":1.5,"position":0,"size":0,"seed":0,"shuffle":false})"),
                                  std::string(R"({"epoch":1,"position":0,"size":0,"seed":"x","shuffle":false})")}) {
    expect_error<UsageError>([&] { data::cursor_from_json(text); }, "LS-STATE-MISFIT");
  }
}

TEST(Cursors, OfOtherDataAreRefused) {
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto data = strategy.distribute(numbers(10), {.global_batch = 4});
  const auto other =
      strategy.distribute(data::from_tensors(torch::ones({10, 1}), torch::arange(10)), {.global_batch = 4});
  expect_error<DataError>([&] { other.seek(data.cursor()); }, "LS-DATA-CHANGED");
}

TEST(Cursors, NameTheFileThatHasChanged) {
  std::vector<std::string> paths;
  for (int i = 0; i < 4; ++i) {
    paths.push_back(::testing::TempDir() + "/lockstep_changed_" + std::to_string(getpid()) + "_" + std::to_string(i));
    std::ofstream(paths.back()) << "contents " << i;
  }
  class Named final : public data::StreamSource {
   public:
    explicit Named(std::vector<std::string> paths) : paths_(std::move(paths)) {}
    std::unique_ptr<data::StreamReader> open(const data::StreamPass& pass,
                                             const data::StreamPosition& position) const override {
      return numbers_in({5}).source()->open(pass, position);
    }
    std::string describe() const override { return "named files"; }
    std::vector<File> files() const override {
      std::vector<File> files;
      for (const std::string& path : paths_) files.push_back({path, internal::digest_of_file(path)});
      return files;
    }

   private:
    const std::vector<std::string> paths_;
  };
  MirroredStrategy strategy({.devices = lanes(1)});
  const auto distribute = [&] {
    return strategy.distribute(Stream(std::make_shared<Named>(paths)), {.global_batch = 2});
  };
  const data::Cursor cursor = distribute().cursor();
  distribute().seek(cursor);
  std::ofstream(paths[2]) << "contents of another kind";
  expect_error<DataError>([&] { distribute().seek(cursor); }, "LS-DATA-CHANGED", {paths[2]});
  std::ofstream(paths[0]) << "and here";
  expect_error<DataError>([&] { distribute().seek(cursor); }, "LS-DATA-CHANGED", {"several"});
  for (const std::string& path : paths) std::remove(path.c_str());
}

}  // namespace
}  // namespace lockstep
