// How data sets are dealt: padding, and reading ahead.
#include "lockstep/data/deal/deal.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/core/log.h"
#include "lockstep/data/deal/step_feed.h"
#include "lockstep/replica/pool/cores.h"
#include "tests/data/dealt_numbers.h"
#include "tests/data/records_in_memory.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using testing::Numbers;
using testing::numbers;
using testing::numbers_in;
using testing::Steps;
using testing::steps_of;
using testing::targets_of;

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

TEST(ReadingThreads, AreThoseThatLanesLeaveWhereNoneAreSaid) {
  const int64_t cores = internal::this_host().available_cores();
  const auto expect = [](int64_t num_lanes, const auto& data, const DistributeOptions& options, int64_t threads) {
    MirroredStrategy strategy({.devices = lanes(static_cast<int>(num_lanes))});
    const std::string text = strategy.distribute(data, options).describe();
    const std::string expected = " on " + std::to_string(threads) + (threads == 1 ? " thread," : " threads,");
    EXPECT_NE(text.find(expected), std::string::npos) << expected << " in " << text;
  };
  const auto ahead = [](int64_t steps, int64_t threads) {
    return DistributeOptions{.global_batch = 40, .prefetch = steps, .threads = threads};
  };
  expect(1, numbers(40), ahead(8, 3), 3);
  expect(1, numbers(40), ahead(2, 3), 2);  // a thread more would have nothing to do
  expect(cores, numbers(40), ahead(8, 0), 1);
  expect(cores + 1, numbers(40), ahead(8, 0), 1);
  expect(1, numbers(40), ahead(cores + 8, 0), std::max<int64_t>(cores - 1, 1));
  expect(1, numbers_in({40}), ahead(8, 3), 1);
  DistributeOptions skips = ahead(8, 3);
  skips.on_error = OnError::kSkip;
  expect(1, numbers(40), skips, 1);
  MirroredStrategy strategy({.devices = lanes(1), .threads_per_replica = static_cast<int>(cores)});
  EXPECT_NE(strategy.distribute(numbers(40), ahead(8, 0)).describe().find(" on 1 thread,"), std::string::npos);
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
    EXPECT_NE(data.describe().find("up to 5 steps can be read ahead"), std::string::npos) << data.describe();
  }
  EXPECT_LE(*read, 7) << "two were taken, and five read ahead";
}

INSTANTIATE_TEST_SUITE_P(OnThreads, Ahead, ::testing::Values(1, 3));

/// Reads one step, which takes as long as `slow` does.
class SlowReader final : public internal::EpochReader {
 public:
  explicit SlowReader(std::function<void()> slow) : slow_(std::move(slow)) {}
  Work claim() override {
    if (std::exchange(claimed_, true)) return nullptr;
    return [this] {
      slow_();
      return internal::LocalStep{};
    };
  }

 private:
  const std::function<void()> slow_;
  bool claimed_ = false;
};

TEST(ReadingAhead, AStepThatTakesLongIsNamedWithThePipelineAheadOrNot) {
  for (const int64_t depth : {0, 2}) {
    std::atomic<int> warnings = 0;
    std::string text;
    set_log_sink([&](LogLevel, std::string_view line) {
      text = line;
      ++warnings;
    });
    const auto begin = std::chrono::steady_clock::now();
    const auto slow = [&] {
      if (depth > 0) {
        while (warnings < 2) std::this_thread::yield();
      } else {
        while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(3)) std::this_thread::yield();
      }
    };
    internal::StepFeed feed(std::make_unique<SlowReader>(slow), depth, 1, "images under 'a'",
                            std::chrono::milliseconds(1));
    EXPECT_FALSE(feed.next().end);
    EXPECT_TRUE(feed.next().end);
    set_log_sink({});
    EXPECT_GE(warnings, depth > 0 ? 2 : 1);
    EXPECT_NE(text.find("input stall: a step has waited 0."), std::string::npos) << text;
    EXPECT_NE(text.find("for images under 'a'"), std::string::npos) << text;
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

}  // namespace
}  // namespace lockstep
