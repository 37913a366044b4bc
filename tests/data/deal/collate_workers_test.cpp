// Parts that a function of the program makes: empty ones, on several workers, and over a stop and a resume.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/deal/collate.h"
#include "tests/data/records_in_memory.h"
#include "tests/support/errors.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using testing::numbers_in;
using testing::run_workers;
using testing::WorkersCase;
using torch::Tensor;
using Numbers = std::vector<int64_t>;

/// Sample i is a sequence of 1 + i % 3 pairs.
Batch sequence(Batch row) {
  const auto i = row.target.item<int64_t>();
  row.input = torch::sin(torch::arange(2 * (1 + i % 3), torch::kFloat) + i).view({1, -1, 2});
  row.target = torch::full({1}, i % 5, torch::kFloat);
  return row;
}

/// Sequences as recurrent layers take them, [time, samples, 2]; as graphs: nodes one after the other, where each
/// begins, which node is whose, a sparse matrix of all nodes; noise.
Batch join_sequences(const std::vector<Batch>& samples) {
  std::vector<Tensor> targets, nodes;
  Numbers begins{0}, lengths, owners;
  int64_t longest = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Batch& one = samples[i];
    nodes.push_back(one.input[0]);
    targets.push_back(one.target);
    lengths.push_back(one.input.size(1));
    begins.push_back(begins.back() + lengths.back());
    owners.insert(owners.end(), static_cast<std::size_t>(lengths.back()), static_cast<int64_t>(i));
    longest = std::max(longest, lengths.back());
  }
  Batch batch{.input = torch::zeros({longest, static_cast<int64_t>(samples.size()), 2}), .target = torch::cat(targets)};
  for (std::size_t i = 0; i < samples.size(); ++i) {
    batch.input.select(1, static_cast<int64_t>(i)).narrow(0, 0, lengths[i]).copy_(nodes[i]);
  }
  batch.more["nodes"] = torch::cat(nodes);
  batch.more["begins"] = torch::tensor(begins);
  batch.more["owners"] = torch::tensor(owners).unsqueeze(0).expand({2, -1});
  batch.more["matrix"] = torch::eye(begins.back()).to_sparse();
  batch.more["noise"] = torch::rand({static_cast<int64_t>(samples.size())});
  batch.more["constant"] = torch::arange(3);
  return batch;
}

/// What there is of no samples, beside the time, which is that of one sample.
void expect_empty(const Batch& part) {
  EXPECT_EQ(part.size(), 0);
  ASSERT_EQ(part.input.dim(), 3);
  EXPECT_GT(part.input.size(0), 0);
  EXPECT_EQ(part.input.size(1), 0);
  EXPECT_EQ(part.target.numel(), 0);
  EXPECT_EQ(part.more.at("nodes").sizes(), (Numbers{0, 2}));
  EXPECT_TRUE(torch::equal(part.more.at("begins"), torch::zeros({1}, torch::kLong)));
  EXPECT_EQ(part.more.at("owners").sizes(), (Numbers{2, 0}));
  EXPECT_EQ(part.more.at("matrix").sizes(), (Numbers{0, 0}));
  EXPECT_TRUE(part.more.at("matrix").is_sparse());
  EXPECT_EQ(part.more.at("noise").numel(), 0);
  EXPECT_EQ(part.more.at("constant").numel(), 3);
}

bool same(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes() || a.layout() != b.layout()) return false;
  return a.is_sparse() ? torch::equal(a.to_dense(), b.to_dense()) : torch::equal(a, b);
}

void expect_same(const Batch& a, const Batch& b) {
  EXPECT_TRUE(same(a.ids, b.ids));
  EXPECT_TRUE(same(a.input, b.input)) << a.input.sizes() << " " << b.input.sizes();
  EXPECT_TRUE(same(a.target, b.target));
  EXPECT_EQ(a.global_size, b.global_size);
  for (const auto& [name, tensor] : a.more) EXPECT_TRUE(same(tensor, b.more.at(name))) << name;
}

struct Trained {
  std::vector<std::vector<Batch>> steps;  // by step and replica
  Tensor weight;
  std::vector<data::LedgerEntry> ledger;
};

/// Trains on the epochs 0 and 1.
template <class Data>
Trained trained(Strategy& strategy, const Data& data, const DistributeOptions& options) {
  const auto rnn = strategy.make_module([] { return torch::nn::LSTM(2, 4); }, {.name = "rnn"});
  const auto head = strategy.make_module([] { return torch::nn::Linear(4, 1); }, {.name = "head"});
  auto variables = rnn.variables();
  for (const Variable& one : head.variables()) variables.push_back(one);
  const auto optimizer = strategy.make_optimizer(variables, torch::optim::SGDOptions(0.1));
  const auto dealt = strategy.distribute(data, options);
  Trained result;
  for (const int64_t epoch : {0, 1}) {
    for (const auto& step : dealt.epoch(epoch)) {
      result.steps.emplace_back(step.begin(), step.end());
      strategy.run(step, [&](ReplicaContext& ctx, const Batch& part) {
        const Tensor last = std::get<0>(rnn(ctx)->forward(part.input))[0];
        const Tensor losses = (head(ctx)->forward(last).squeeze(1) - part.target).square();
        ctx.scale_loss(part.mean(losses)).backward();
        optimizer.step(ctx);
      });
    }
  }
  result.weight = head.state().at("weight");
  result.ledger = dealt.ledger();
  return result;
}

template <class Data>
void expect_same_on_all_workers(const Data& data, const DistributeOptions& options, int64_t samples, bool has_empty) {
  const auto on = [&](int64_t workers, int num_lanes) {
    return run_workers(WorkersCase{workers, 4, num_lanes},
                       [&](Strategy& strategy) { return trained(strategy, data, options); });
  };
  const Trained one = on(1, 1).front();
  int64_t seen = 0;
  int64_t empty = 0;
  for (const auto& step : one.steps) {
    for (const Batch& part : step) {
      seen += part.size();
      if (part.size() > 0) continue;
      expect_empty(part);
      ++empty;
    }
  }
  EXPECT_EQ(seen, 2 * samples);
  EXPECT_EQ(empty > 0, has_empty);
  for (const auto& [workers, num_lanes] : {std::pair{1, 2}, std::pair{2, 1}, std::pair{2, 2}, std::pair{4, 1}}) {
    const auto all = on(workers, num_lanes);
    data::LedgerEntry sum{.epoch = 0};
    for (const Trained& worker : all) {
      EXPECT_TRUE(torch::equal(worker.weight, one.weight)) << workers << " workers";
      ASSERT_EQ(worker.steps.size(), one.steps.size());
      ASSERT_EQ(worker.ledger.size(), 2u);
      sum = sum + worker.ledger[0];
    }
    EXPECT_EQ(sum.samples, one.ledger[0].samples);
    EXPECT_EQ(sum.order, one.ledger[0].order);
    for (std::size_t i = 0; i < one.steps.size(); ++i) {
      std::vector<Batch> parts;
      for (const Trained& worker : all) parts.insert(parts.end(), worker.steps[i].begin(), worker.steps[i].end());
      ASSERT_EQ(parts.size(), one.steps[i].size());
      for (std::size_t r = 0; r < parts.size(); ++r) expect_same(parts[r], one.steps[i][r]);
    }
  }
}

Dataset sequences(int64_t count) {
  return data::from_tensors(torch::zeros({count, 1}), torch::arange(count)).map(sequence);
}

TEST(CollatedParts, OfADatasetAreTheSameOnAnyWorkers) {
  expect_same_on_all_workers(sequences(10), {.global_batch = 8, .shuffle = true, .collate = join_sequences}, 10, true);
  expect_same_on_all_workers(sequences(12).shuffle(5).skip(2),
                             {.global_batch = 4, .prefetch = 2, .threads = 2, .collate = join_sequences}, 10, true);
  expect_same_on_all_workers(sequences(10),
                             {.global_batch = 8, .remainder = Remainder::kDrop, .collate = join_sequences}, 8, false);
  expect_same_on_all_workers(sequences(10), {.global_batch = 8, .on_error = OnError::kSkip, .collate = join_sequences},
                             10, true);
}

TEST(CollatedParts, OfAStreamAreTheSameOnAnyWorkers) {
  // Files of uneven lengths: replica 0 is at its end first, then the others one by one.
  const Stream files = numbers_in({1, 4, 3, 7}).map(sequence);
  expect_same_on_all_workers(files, {.global_batch = 8, .sharding = Sharding::kFile, .collate = join_sequences}, 15,
                             true);
  expect_same_on_all_workers(
      files,
      {.global_batch = 8, .shuffle = true, .sharding = Sharding::kFile, .prefetch = 2, .collate = join_sequences}, 15,
      true);
  // Every worker reads the whole.
  expect_same_on_all_workers(files, {.global_batch = 6, .sharding = Sharding::kData, .collate = join_sequences}, 15,
                             true);
}

TEST(CollatedParts, OfAStreamMayBeOneElementEach) {
  for (const int64_t workers : {1, 2}) {
    const auto sizes = run_workers(WorkersCase{workers, 2}, [&](Strategy& strategy) {
      const auto dealt = strategy.distribute_from_function(
          [&](const InputContext& context) {
            return numbers_in({3 + context.input_pipeline_id, 2}).batch(2).map([](Batch rows) { return rows; });
          },
          {.collate = [](const std::vector<Batch>& samples) {
            std::vector<Tensor> targets;
            for (const Batch& one : samples) targets.push_back(one.target);
            return Batch{.input = torch::cat(targets)};
          }});
      Numbers all;
      for (const auto& step : dealt.epoch(0)) {
        for (const Batch& part : step) {
          all.push_back(part.size());
          EXPECT_EQ(part.input.size(0), part.size());
        }
      }
      return all;
    });
    EXPECT_EQ(sizes[0], workers == 1 ? (Numbers{2, 2, 1, 0}) : (Numbers{2, 2, 1}));
    if (workers == 2) {
      EXPECT_EQ(sizes[1], (Numbers{2, 2, 2}));
    }
  }
}

TEST(CollatedParts, WithoutSamplesOfAFunctionThatTakesOneAloneHaveNoRows) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 3});
  const auto one_alone = [](const std::vector<Batch>& samples) {
    if (samples.size() != 1) throw std::runtime_error("one at a time");
    return samples.front();
  };
  const auto dealt = strategy.distribute(sequences(4), {.global_batch = 3, .collate = one_alone});
  int64_t empty = 0;
  for (const auto& step : dealt.epoch(0)) {
    for (const Batch& part : step) {
      if (part.size() == 0) ++empty;
      EXPECT_EQ(part.input.size(0), part.size());
    }
  }
  EXPECT_EQ(empty, 2);
}

TEST(CollatedParts, ThatFailAreNamedWithReplicaWorkerAndSamples) {
  const auto throws = [](const std::vector<Batch>& samples) -> Batch {
    for (const Batch& one : samples) {
      if (one.ids.item<int64_t>() == 5) throw std::invalid_argument("five");
    }
    return join_sequences(samples);
  };
  const auto messages = run_workers(WorkersCase{2, 4}, [&](Strategy& strategy) -> std::string {
    const auto dealt = strategy.distribute(sequences(8), {.global_batch = 8, .collate = throws});
    try {
      for (const auto& step : dealt.epoch(0)) strategy.run(step, [](ReplicaContext&, const Batch&) {});
    } catch (const DataError& error) {
      bool is_nested = false;
      try {
        std::rethrow_if_nested(error);
      } catch (const std::invalid_argument&) {
        is_nested = true;
      }
      EXPECT_TRUE(is_nested);
      EXPECT_EQ(error.code(), "LS-COLLATE");
      return error.what();
    } catch (const std::exception&) {
      return "another worker";
    }
    return "none";
  });
  EXPECT_EQ(messages[0], "another worker");
  for (const std::string part : {"2 samples (4, 5)", "replica 2", "worker 1", "five"}) {
    EXPECT_NE(messages[1].find(part), std::string::npos) << part << " in " << messages[1];
  }
}

TEST(CollatedParts, AreUsedByTheirRunsAndComeAgainAfterAResume) {
  // A function that keeps the ids that it gives, and another order of them.
  static std::vector<Tensor> kept;
  const auto reversed = [](std::vector<Batch> samples) {
    std::reverse(samples.begin(), samples.end());
    Batch batch = join_sequences(samples);
    std::vector<Tensor> ids;
    for (const Batch& one : samples) ids.push_back(one.ids);
    batch.ids = torch::cat(ids);
    kept.push_back(batch.ids);
    return batch;
  };
  for (const bool is_stream : {false, true}) {
    for (const int64_t replicas : {1, 3}) {
      MirroredStrategy strategy({.devices = lanes(1), .replicas = replicas, .seed = 3});
      const Variable weight = strategy.make_variable(torch::ones({}), {.name = "weight"});
      const auto optimizer = strategy.make_optimizer(std::vector{weight}, torch::optim::SGDOptions(0.1));
      const auto train = [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(part.mean(weight.value(ctx) * part.target)).backward();
        optimizer.step(ctx);
      };
      const DistributeOptions options{.global_batch = 4, .shuffle = true, .prefetch = 1, .collate = reversed};
      const auto make = [&] {
        return is_stream ? strategy.distribute(numbers_in({5, 6}).map(sequence), options)
                         : strategy.distribute(sequences(11), options);
      };
      const auto whole = make();
      std::vector<std::vector<Batch>> all;
      std::vector<data::Cursor> before;
      for (const auto& step : whole.epoch(0)) {
        before.push_back(whole.cursor());
        all.emplace_back(step.begin(), step.end());
        strategy.run(step, train);
      }
      ASSERT_EQ(all.size(), 3u);
      EXPECT_TRUE(strategy.findings().empty());
      for (std::size_t from = 0; from < all.size(); ++from) {
        EXPECT_EQ(before[from].position, static_cast<int64_t>(4 * from));
        const auto resumed = make();
        resumed.seek(before[from]);
        std::size_t i = from;
        for (const auto& step : resumed.epoch(0)) {
          ASSERT_LT(i, all.size());
          for (int64_t r = 0; r < replicas; ++r) expect_same(step[r], all[i][static_cast<std::size_t>(r)]);
          strategy.run(step, train);
          ++i;
        }
        EXPECT_EQ(i, all.size());
      }
    }
  }
  kept.clear();
}

}  // namespace
}  // namespace lockstep
