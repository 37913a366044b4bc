// What holds for every size, batch, remainder and placement: each sample is used once, in the same blocks, also over
// stops.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/data/records_in_memory.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

/// Keeps the log out of a test's output.
class Quiet {
 public:
  Quiet() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  ~Quiet() { set_log_sink({}); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

using testing::run_workers;
using testing::WorkersCase;
using Numbers = std::vector<int64_t>;

/// The ids of one step, by replica; those of padding are left out.
using Step = std::vector<Numbers>;

Step ids_of(const PerReplica<Batch>& batch) {
  Step step;
  for (const Batch& part : batch) {
    const torch::Tensor ids = part.ids.narrow(0, 0, part.samples()).contiguous();
    step.emplace_back(ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + ids.numel());
  }
  return step;
}

/// Puts the workers' steps side by side.
std::vector<Step> joined(const std::vector<std::vector<Step>>& workers) {
  std::vector<Step> all = workers.front();
  for (std::size_t w = 1; w < workers.size(); ++w) {
    RC_ASSERT(workers[w].size() == all.size());
    for (std::size_t s = 0; s < all.size(); ++s)
      all[s].insert(all[s].end(), workers[w][s].begin(), workers[w][s].end());
  }
  return all;
}

/// A data set, or a stream, with what it is dealt by.
struct Input {
  std::vector<int64_t> files;  // none: a data set
  int64_t samples = 0;
  int64_t window = 0;  // 0: no shuffle of its own
  int64_t group = 1;
  DistributeOptions options;
  int64_t replicas = 1;

  DistributedDataset distributed(const Strategy& strategy) const {
    if (files.empty()) {
      const torch::Tensor all = torch::arange(samples);
      Dataset dataset = data::from_tensors(all.view({-1, 1}), all);
      if (window > 0) dataset = dataset.shuffle(3);
      return strategy.distribute(dataset, options);
    }
    Stream stream = testing::numbers_in(files, {.cycle_length = 1 + window % 3});
    if (window > 0) stream = stream.shuffle(window, 3);
    if (group > 1) stream = stream.batch(group);
    return strategy.distribute(stream, options);
  }
  int64_t size() const {
    if (files.empty()) return samples;
    int64_t all = 0;
    for (const int64_t file : files) all += file;
    return all;
  }
};

Input any_input() {
  Input input;
  if (*rc::gen::arbitrary<bool>()) {
    input.files = *rc::gen::container<std::vector<int64_t>>(*rc::gen::inRange<std::size_t>(1, 7),
                                                            rc::gen::inRange<int64_t>(0, 12));
  } else {
    input.samples = *rc::gen::inRange<int64_t>(0, 60);
  }
  input.window = *rc::gen::inRange<int64_t>(0, 6);
  input.group = *rc::gen::inRange<int64_t>(1, 4);
  input.replicas = *rc::gen::inRange<int64_t>(1, 7);
  input.options.global_batch = *rc::gen::inRange<int64_t>(1, 13);
  input.options.shuffle = *rc::gen::arbitrary<bool>();
  input.options.seed = *rc::gen::arbitrary<uint64_t>();
  input.options.remainder = *rc::gen::element(Remainder::kKeep, Remainder::kDrop, Remainder::kPad);
  input.options.sharding = *rc::gen::element(Sharding::kAuto, Sharding::kFile, Sharding::kData);
  input.options.prefetch = *rc::gen::inRange<int64_t>(0, 4);
  input.options.threads = *rc::gen::inRange<int64_t>(1, 4);
  return input;
}

int64_t any_workers(int64_t replicas) { return *rc::gen::inRange<int64_t>(1, std::min<int64_t>(replicas, 4) + 1); }

/// The steps of the epochs from the cursor's to `last`, at most `most`, and where they end.
std::pair<std::vector<Step>, data::Cursor> steps_of(const Input& input, int64_t workers, const data::Cursor* from,
                                                    int64_t last, std::size_t most) {
  std::vector<data::Cursor> ends(static_cast<std::size_t>(workers));
  const auto all = run_workers(WorkersCase{workers, input.replicas}, [&](Strategy& strategy) {
    const DistributedDataset data = input.distributed(strategy);
    if (from) data.seek(*from);
    std::vector<Step> steps;
    for (int64_t epoch = data.cursor().epoch; epoch <= last && steps.size() < most; ++epoch) {
      for (const auto& batch : data.epoch(epoch)) {
        steps.push_back(ids_of(batch));
        if (steps.size() == most) break;
      }
    }
    ends[static_cast<std::size_t>(strategy.worker_index())] = data.cursor();
    return steps;
  });
  for (const data::Cursor& end : ends) RC_ASSERT(end == ends.front());
  return {joined(all), ends.front()};
}

constexpr std::size_t kAll = 1000;

RC_GTEST_PROP(Distribute, UsesEachSampleOnceInTheSameBlocksOnAnyWorkers, ()) {
  const Quiet quiet;
  const Input input = any_input();
  const std::vector<Step> one = steps_of(input, 1, nullptr, 0, kAll).first;
  RC_ASSERT(steps_of(input, any_workers(input.replicas), nullptr, 0, kAll).first == one);
  std::set<int64_t> used;
  int64_t samples = 0;
  for (const Step& step : one) {
    int64_t of_step = 0;
    for (const Numbers& part : step) {
      of_step += static_cast<int64_t>(part.size());
      used.insert(part.begin(), part.end());
    }
    RC_ASSERT(of_step <= input.options.global_batch);
    samples += of_step;
  }
  RC_ASSERT(static_cast<int64_t>(used.size()) == samples);
  if (input.options.remainder == Remainder::kDrop) {
    // Of a stream, each replica may leave out less than its part of a global batch.
    RC_ASSERT(input.size() - samples < input.options.global_batch);
    if (input.files.empty()) RC_ASSERT(samples % input.options.global_batch == 0);
  } else {
    RC_ASSERT(samples == input.size());
  }
}

RC_GTEST_PROP(Distribute, GoesOnAfterStopsAsIfThereWereNone, ()) {
  const Quiet quiet;
  const Input input = any_input();
  constexpr int64_t kLast = 2;
  const std::vector<Step> whole = steps_of(input, 1, nullptr, kLast, kAll).first;
  std::vector<Step> pieces;
  data::Cursor place;
  bool stopped = false;
  for (int stop = 0; pieces.size() < whole.size(); ++stop) {
    const auto most = *rc::gen::inRange<std::size_t>(1, 6);
    const auto [steps, end] = steps_of(input, any_workers(input.replicas), stopped ? &place : nullptr, kLast, most);
    RC_ASSERT(!steps.empty());
    pieces.insert(pieces.end(), steps.begin(), steps.end());
    place = data::cursor_from_json(data::to_json(end));
    stopped = true;
  }
  RC_ASSERT(pieces == whole);
}

/// The sample log of `lockstep train` is made of these lines: epoch, step of the epoch, replica and sample.
TEST(Distribute, IsTheSameOverTwentyStopsOnOneTwoAndFourLanes) {
  constexpr int64_t kReplicas = 4;
  constexpr int64_t kEpochs = 3;
  std::mt19937 random(17);
  for (const bool is_stream : {false, true}) {
    const auto made = [&](const Strategy& strategy) {
      const auto numbered = [](Batch sample) { return sample; };
      const DistributeOptions options{.global_batch = 7, .shuffle = true, .seed = 5, .prefetch = 3, .threads = 2};
      if (is_stream) return strategy.distribute(testing::numbers_in({40, 3, 61, 25}).map(numbered), options);
      const auto all = torch::arange(129);
      return strategy.distribute(data::from_tensors(all.view({129, 1}), all).map(numbered), options);
    };
    // Goes on at a cursor for at most so many steps, on so many lanes.
    const auto run = [&](int64_t lanes, std::string& cursor, int64_t steps, std::vector<Numbers>& log) {
      MirroredStrategy strategy({.devices = testing::lanes(static_cast<int>(lanes)), .replicas = kReplicas});
      const DistributedDataset data = made(strategy);
      if (!cursor.empty()) data.seek(data::cursor_from_json(cursor));
      for (int64_t epoch = data.cursor().epoch; epoch < kEpochs; ++epoch) {
        for (const auto& batch : data.epoch(epoch)) {
          for (int64_t r = 0; r < kReplicas; ++r) {
            const torch::Tensor ids = batch[r].ids;
            for (int64_t i = 0; i < ids.size(0); ++i) log.push_back({epoch, r, ids[i].item<int64_t>()});
          }
          cursor = data::to_json(data.cursor());
          if (--steps == 0) return true;
        }
      }
      return false;
    };
    std::vector<Numbers> whole;
    std::string at;
    run(1, at, INT64_MAX, whole);
    ASSERT_EQ(whole.size(), 129u * kEpochs);
    std::vector<Numbers> pieces;
    at.clear();
    int64_t stops = 0;
    while (run(int64_t{1} << stops % 3, at, std::uniform_int_distribution<int64_t>(1, 4)(random), pieces)) ++stops;
    EXPECT_GE(stops, 20);
    EXPECT_EQ(pieces, whole);
  }
}

}  // namespace
}  // namespace lockstep
