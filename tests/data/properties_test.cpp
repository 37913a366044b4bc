// What holds for every size, batch, remainder and placement: each sample is used once, in the same blocks, also over
// stops.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <map>
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

/// Mostly below `few`, sometimes up to `many`.
rc::Gen<int64_t> any_count(int64_t few, int64_t many) {
  return rc::gen::weightedOneOf<int64_t>({{9, rc::gen::inRange<int64_t>(0, few)}, {1, rc::gen::inRange(few, many)}});
}

Input any_input() {
  Input input;
  if (*rc::gen::arbitrary<bool>()) {
    const auto files = *rc::gen::inRange<std::size_t>(1, 7);
    input.files = *rc::gen::container<std::vector<int64_t>>(files, any_count(12, 200));
  } else {
    input.samples = *any_count(60, 3000);
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

WorkersCase any_placement(int64_t replicas) {
  const int64_t workers = *rc::gen::inRange<int64_t>(1, std::min<int64_t>(replicas, 4) + 1);
  // Each lane has a replica on each worker.
  return {workers, replicas, *rc::gen::inRange(1, static_cast<int>(replicas / workers) + 1)};
}

/// Which steps are read: those of some epochs, at most so many.
struct Stretch {
  int64_t first = 0;  // where there is no cursor to begin at
  int64_t last = 0;
  std::size_t most = SIZE_MAX;
};

/// The steps of a stretch, and where they end.
std::pair<std::vector<Step>, data::Cursor> steps_of(const Input& input, const WorkersCase& placement,
                                                    const Stretch& stretch, const data::Cursor* from = nullptr) {
  std::vector<data::Cursor> ends(static_cast<std::size_t>(placement.workers));
  const auto all = run_workers(placement, [&](Strategy& strategy) {
    const DistributedDataset data = input.distributed(strategy);
    if (from) data.seek(*from);
    std::vector<Step> steps;
    for (int64_t epoch = from ? from->epoch : stretch.first; epoch <= stretch.last; ++epoch) {
      if (steps.size() >= stretch.most) break;
      for (const auto& batch : data.epoch(epoch)) {
        steps.push_back(ids_of(batch));
        if (steps.size() == stretch.most) break;
      }
    }
    ends[static_cast<std::size_t>(strategy.worker_index())] = data.cursor();
    return steps;
  });
  for (const data::Cursor& end : ends) RC_ASSERT(end == ends.front());
  return {joined(all), ends.front()};
}

RC_GTEST_PROP(Distribute, UsesEachSampleOnceInTheSameBlocksOnAnyWorkersAndLanes, ()) {
  const Quiet quiet;
  const Input input = any_input();
  const auto epoch = *rc::gen::inRange<int64_t>(0, 4);
  const Stretch of_epoch{.first = epoch, .last = epoch};
  const std::vector<Step> one = steps_of(input, {1, input.replicas}, of_epoch).first;
  RC_ASSERT(steps_of(input, any_placement(input.replicas), of_epoch).first == one);
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
  const std::vector<Step> whole = steps_of(input, {1, input.replicas}, {.last = kLast}).first;
  std::vector<Step> pieces;
  data::Cursor place;
  bool stopped = false;
  while (pieces.size() < whole.size()) {
    const auto most = *rc::gen::inRange<std::size_t>(1, 6 + whole.size() / 8);
    const auto [steps, end] =
        steps_of(input, any_placement(input.replicas), {.last = kLast, .most = most}, stopped ? &place : nullptr);
    RC_ASSERT(!steps.empty());
    pieces.insert(pieces.end(), steps.begin(), steps.end());
    place = data::cursor_from_json(data::to_json(end));
    stopped = true;
  }
  RC_ASSERT(pieces == whole);
}

constexpr int64_t kReplicas = 4;
constexpr int64_t kEpochs = 3;

/// Samples with noise, which each epoch draws anew.
DistributedDataset noisy_numbers(const Strategy& strategy, bool is_stream) {
  const auto noisy = [](Batch sample, const at::Generator& random) {
    sample.input = sample.input + torch::rand(sample.input.sizes(), random);
    return sample;
  };
  const DistributeOptions options{.global_batch = 7, .shuffle = true, .seed = 5, .prefetch = 3, .threads = 2};
  if (is_stream) return strategy.distribute(testing::numbers_in({40, 3, 61, 25}).map(noisy, {.threads = 2}), options);
  const auto all = torch::arange(129);
  return strategy.distribute(data::from_tensors(all.view({129, 1}), all).map(noisy), options);
}

/// What runs leave behind, one after the other.
struct Traces {
  /// The sample log of `lockstep train` has such lines: epoch, replica and sample. Here the input's bits follow.
  std::vector<Numbers> log;
  std::map<int64_t, data::LedgerEntry> ledger;  // by epoch; of all workers
  std::string cursor;                           // where the last run ended; empty: none did
};

/// The log's lines of one worker's step.
std::vector<Numbers> lines_of(const PerReplica<Batch>& step, int64_t epoch) {
  std::vector<Numbers> lines;
  int64_t replica = step.first_replica().value();
  for (const Batch& part : step) {
    const torch::Tensor bits = part.input.to(torch::kFloat).contiguous().view(torch::kInt).to(torch::kLong);
    for (int64_t i = 0; i < part.size(); ++i) {
      Numbers& line = lines.emplace_back(Numbers{epoch, replica, part.ids[i].item<int64_t>()});
      for (int64_t j = 0; j < bits.size(1); ++j) line.push_back(bits[i][j].item<int64_t>());
    }
    ++replica;
  }
  return lines;
}

/// Goes on for at most so many steps; false where there are fewer.
bool go_on(bool is_stream, const WorkersCase& placement, int64_t most, Traces& traces) {
  struct Piece {
    std::vector<std::vector<Numbers>> steps;
    std::vector<data::LedgerEntry> ledger;
    std::string cursor;
  };
  const auto all = run_workers(placement, [&](Strategy& strategy) {
    const DistributedDataset data = noisy_numbers(strategy, is_stream);
    if (!traces.cursor.empty()) data.seek(data::cursor_from_json(traces.cursor));
    Piece piece;
    const auto is_full = [&] { return static_cast<int64_t>(piece.steps.size()) == most; };
    for (int64_t epoch = data.cursor().epoch; epoch < kEpochs && !is_full(); ++epoch) {
      for (const auto& step : data.epoch(epoch)) {
        piece.steps.push_back(lines_of(step, epoch));
        if (is_full()) break;
      }
    }
    piece.ledger = data.ledger();
    piece.cursor = data::to_json(data.cursor());
    return piece;
  });
  for (std::size_t s = 0; s < all.front().steps.size(); ++s) {
    for (const Piece& piece : all) {
      traces.log.insert(traces.log.end(), piece.steps.at(s).begin(), piece.steps.at(s).end());
    }
  }
  for (const Piece& piece : all) {
    EXPECT_EQ(piece.cursor, all.front().cursor);
    for (data::LedgerEntry entry : piece.ledger) {
      if (&piece != &all.front()) entry.steps = 0;  // all workers make the same steps
      data::LedgerEntry& sum = traces.ledger[entry.epoch];
      sum.epoch = entry.epoch;
      sum = sum + entry;
    }
  }
  traces.cursor = all.front().cursor;
  return static_cast<int64_t>(all.front().steps.size()) == most;
}

TEST(Distribute, IsTheSameOverTwentyStopsOnOneTwoAndFourLanesAndWorkers) {
  const Quiet quiet;
  const std::array<WorkersCase, 6> placements{{{1, kReplicas, 1},
                                               {1, kReplicas, 2},
                                               {2, kReplicas, 1},
                                               {1, kReplicas, 4},
                                               {4, kReplicas, 1},
                                               {2, kReplicas, 2}}};
  std::mt19937 random(17);
  for (const bool is_stream : {false, true}) {
    Traces whole;
    go_on(is_stream, placements.front(), INT64_MAX, whole);
    ASSERT_EQ(whole.log.size(), 129u * kEpochs);
    const std::set<Numbers> different(whole.log.begin(), whole.log.end());
    ASSERT_EQ(different.size(), whole.log.size());
    Traces pieces;
    std::size_t stops = 0;
    while (go_on(is_stream, placements[stops % placements.size()], std::uniform_int_distribution<>(1, 4)(random),
                 pieces)) {
      ++stops;
    }
    EXPECT_GE(stops, 20u);
    EXPECT_EQ(pieces.log, whole.log);
    ASSERT_EQ(whole.ledger.size(), static_cast<std::size_t>(kEpochs));
    ASSERT_EQ(pieces.ledger.size(), whole.ledger.size());
    for (const auto& [epoch, entry] : whole.ledger) {
      const data::LedgerEntry& other = pieces.ledger.at(epoch);
      EXPECT_EQ(other.steps, entry.steps) << "epoch " << epoch;
      EXPECT_EQ(other.samples, entry.samples) << "epoch " << epoch;
      EXPECT_EQ(other.ids, entry.ids) << "epoch " << epoch;
      EXPECT_EQ(other.order, entry.order) << "epoch " << epoch;
    }
  }
}

}  // namespace
}  // namespace lockstep
