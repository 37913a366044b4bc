// What rows of padding hold, and that a loss which counts them is said.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/sha256.h"
#include "tests/data/dealt_numbers.h"
#include "tests/data/records_in_memory.h"
#include "tests/support/programs.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

namespace F = torch::nn::functional;
using testing::lanes;
using testing::numbers_in;
using testing::run_workers;
using testing::WorkersCase;
using Sizes = std::vector<int64_t>;

/// Samples of four numbers, with a further tensor, from files of so many records.
Stream waves_in(const Sizes& sizes) {
  return numbers_in(sizes).map([](Batch row) {
    const double k = row.target.item<double>();
    row.input = torch::sin(torch::arange(4, torch::kFloat) + k).unsqueeze(0);
    row.target = torch::full({1}, static_cast<int64_t>(k) % 3, torch::kLong);
    row.more["half"] = row.input.to(torch::kHalf);
    return row;
  });
}

/// What the replicas are given in an epoch, by replica, and the weights and statistics after training on it.
struct Trained {
  std::vector<std::vector<Batch>> parts;
  std::string digest;
};

Trained trained(Strategy& strategy, const Stream& stream, const DistributeOptions& options) {
  const auto model = strategy.make_module(
      [] { return torch::nn::Sequential(torch::nn::Linear(4, 8), SyncBatchNorm(8), torch::nn::Linear(8, 3)); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
  const auto data = strategy.distribute(stream, options);
  Trained result;
  for (const auto& batch : data.epoch(0)) {
    auto& step = result.parts.emplace_back();
    for (const Batch& part : batch) step.push_back(part);
    strategy.run(batch, [&](ReplicaContext& ctx, const Batch& b) {
      ctx.scale_loss(F::cross_entropy(model(ctx)->forward(b.input), b.target)).backward();
      optimizer.step(ctx);
    });
  }
  std::vector<std::pair<std::string, at::Tensor>> values;
  for (const auto& [name, value] : model.state()) values.emplace_back(name, value);
  result.digest = sha256_of(values);
  return result;
}

void expect_same_parts(const std::vector<Trained>& workers, const Trained& one) {
  for (std::size_t step = 0; step < one.parts.size(); ++step) {
    std::size_t replica = 0;
    for (const Trained& worker : workers) {
      ASSERT_EQ(worker.parts.size(), one.parts.size());
      for (const Batch& part : worker.parts[step]) {
        const Batch& same = one.parts[step].at(replica++);
        EXPECT_EQ(part.padding, same.padding);
        EXPECT_TRUE(torch::equal(part.ids, same.ids)) << part.ids << same.ids;
        EXPECT_TRUE(torch::equal(part.target, same.target)) << part.target << same.target;
        EXPECT_TRUE(torch::equal(part.input, same.input)) << "step " << step << ", replica " << replica - 1;
        EXPECT_TRUE(torch::equal(part.more.at("half"), same.more.at("half")));
      }
    }
  }
}

TEST(Padding, IsTheSameWhicheverReplicasShareAWorker) {
  for (const Sizes& sizes : {Sizes{10, 16, 22, 28}, Sizes{28, 22, 16, 10}, Sizes{0, 3, 0, 9}, Sizes{0, 0, 0, 5}}) {
    for (const Sharding sharding : {Sharding::kFile, Sharding::kData}) {
      const DistributeOptions options{.global_batch = 8, .remainder = Remainder::kPad, .sharding = sharding};
      const auto on = [&](int64_t workers) {
        return run_workers(WorkersCase{workers, 4},
                           [&](Strategy& strategy) { return trained(strategy, waves_in(sizes), options); });
      };
      const Trained one = on(1).front();
      for (const int64_t workers : {2, 4}) {
        const std::vector<Trained> all = on(workers);
        expect_same_parts(all, one);
        for (const Trained& worker : all) EXPECT_EQ(worker.digest, one.digest) << workers << " workers";
      }
    }
  }
}

TEST(Padding, OfSamplesOfDifferentLengthsHasTheLengthOfTheFirstRowsOfItsStep) {
  // An element has the length of its longest sample: that of the second file is longer, and differs by step.
  const auto stream = numbers_in({2, 6})
                          .map([](Batch row) {
                            row.input = torch::ones({1, 1 + row.target.item<int64_t>()});
                            return row;
                          })
                          .padded_batch(2);
  for (const int64_t workers : {1, 2}) {
    const auto lengths = run_workers(WorkersCase{workers, 2}, [&](Strategy& strategy) {
      Sizes all;
      const auto data =
          strategy.distribute(stream, {.global_batch = 4, .remainder = Remainder::kPad, .sharding = Sharding::kFile});
      for (const auto& batch : data.epoch(0)) {
        for (const Batch& part : batch) all.push_back(part.input.size(1));
      }
      return all;
    });
    Sizes all;
    for (std::size_t step = 0; step < 3; ++step) {
      for (const Sizes& worker : lengths) {
        const std::size_t local = worker.size() / 3;
        all.insert(all.end(), worker.begin() + static_cast<std::ptrdiff_t>(step * local),
                   worker.begin() + static_cast<std::ptrdiff_t>((step + 1) * local));
      }
    }
    EXPECT_EQ(all, (Sizes{2, 4, 6, 6, 8, 8})) << workers << " workers";
  }
}

TEST(Padding, IsTheSameAfterAResume) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 4});
  const auto make = [&] {
    return strategy.distribute(waves_in({10, 16, 22, 28}),
                               {.global_batch = 8, .remainder = Remainder::kPad, .sharding = Sharding::kFile});
  };
  std::vector<PerReplica<Batch>> whole;
  std::vector<data::Cursor> behind;
  const auto data = make();
  for (const auto& batch : data.epoch(0)) {
    whole.push_back(batch);
    strategy.run(batch, [](ReplicaContext&, const Batch&) {});
    behind.push_back(data.cursor());
  }
  ASSERT_EQ(whole.size(), 14u);
  for (std::size_t step = 0; step + 1 < whole.size(); ++step) {
    const auto rest = make();
    rest.seek(behind[step]);
    const auto epoch = rest.epoch(0);
    const auto it = epoch.begin();
    auto part = it->begin();
    for (const Batch& same : whole[step + 1]) {
      EXPECT_EQ(part->padding, same.padding);
      EXPECT_TRUE(torch::equal((part++)->input, same.input)) << "step " << step + 1;
    }
  }
}

/// How often a loss over an epoch of 10 samples, in global batches of 8, is said to count padding.
int64_t findings(const std::function<torch::Tensor(const Batch&, const torch::Tensor&)>& loss,
                 Remainder remainder = Remainder::kPad) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2, .seed = 7});
  const auto model = strategy.make_module([] { return torch::nn::Linear(2, 4); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
  const auto x = torch::sin(torch::arange(20, torch::kFloat)).view({10, 2});
  const auto data = strategy.distribute(data::from_tensors(x, torch::arange(10).remainder(4)),
                                        {.global_batch = 8, .remainder = remainder});
  for (const auto& batch : data.epoch(0)) {
    strategy.run(batch, [&](ReplicaContext& ctx, const Batch& b) {
      ctx.scale_loss(loss(b, model(ctx)->forward(b.input)) + 1e-3 * model(ctx)->weight.square().sum()).backward();
      optimizer.step(ctx);
    });
  }
  int64_t count = 0;
  for (const Finding& one : strategy.findings()) count += one.code == "LS-PADDING-COUNTED" ? one.count : 0;
  return count;
}

torch::Tensor one_hot(const Batch& b) { return torch::one_hot(b.target.clamp_min(0), 4).to(torch::kFloat); }

TEST(Padding, ThatALossCountsIsSaid) {
  EXPECT_EQ(findings([](const Batch& b, const auto& out) { return F::mse_loss(out, one_hot(b)); }), 1);
  EXPECT_EQ(findings([](const Batch& b, const auto& out) { return F::l1_loss(out, one_hot(b)); }), 1);
  EXPECT_EQ(findings([](const Batch& b, const auto& out) { return F::smooth_l1_loss(out, one_hot(b)); }), 1);
  EXPECT_EQ(
      findings([](const Batch& b, const auto& out) { return F::binary_cross_entropy_with_logits(out, one_hot(b)); }),
      1);
  EXPECT_EQ(findings([](const Batch& b, const auto& out) {
              return -(one_hot(b) * torch::log_softmax(out, 1)).sum() / b.size();
            }),
            1);
  EXPECT_EQ(findings([](const Batch& b, const auto& out) {
              return F::cross_entropy(out, b.target.clamp_min(0));  // the mark of padding is lost
            }),
            1);
}

TEST(Padding, ThatALossLeavesOutIsNotSaid) {
  EXPECT_EQ(findings([](const Batch& b, const auto& out) { return F::cross_entropy(out, b.target); }), 0);
  EXPECT_EQ(findings([](const Batch& b, const auto& out) { return F::nll_loss(torch::log_softmax(out, 1), b.target); }),
            0);
  EXPECT_EQ(findings([](const Batch& b, const auto& out) { return b.mean((out - one_hot(b)).square().mean(1)); }), 0);
  EXPECT_EQ(findings([](const Batch& b, const auto& out) {
              return ((out - one_hot(b)).square().mean(1) * b.weights()).sum() / b.samples();
            }),
            0);
  EXPECT_EQ(findings([](const Batch& b, const auto& out) {
              return ((out - one_hot(b)).square().mean(1) * b.ids.ge(0)).sum() / b.samples();
            }),
            0);
  EXPECT_EQ(findings([](const Batch& b, const auto& out) {
              return F::mse_loss(out.narrow(0, 0, b.samples()), one_hot(b).narrow(0, 0, b.samples()));
            }),
            0);
  EXPECT_EQ(findings([](const Batch& b, const auto& out) { return F::mse_loss(out, one_hot(b)); }, Remainder::kKeep),
            0);
  // Features are looked at across all rows, as batch normalisation does; the losses are those of the samples.
  EXPECT_EQ(findings([](const Batch& b, const auto& out) {
              return b.mean((out - one_hot(b)).square().mean(1)) + 0.1 * out.var();
            }),
            0);
}

TEST(Padding, IsLookedForWithoutAChangeOfTheStep) {
  const auto weights = [](bool has_hook) {
    MirroredStrategy strategy({.devices = lanes(1), .replicas = 2, .seed = 7});
    const auto model = strategy.make_module([] { return torch::nn::Linear(2, 1); });
    const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
    const auto x = torch::sin(torch::arange(20, torch::kFloat)).view({10, 2});
    const auto data =
        strategy.distribute(data::from_tensors(x, x.sum(1, true)), {.global_batch = 8, .remainder = Remainder::kPad});
    int64_t calls = 0;
    for (const auto& batch : data.epoch(0)) {
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& b) {
        const auto out = model(ctx)->forward(b.input);
        const auto error = (out - b.target).square();
        if (b.samples() > 0) error.retain_grad();  // LibTorch 1.13 cannot for a gradient that is left out
        if (has_hook) error.register_hook([&](const torch::Tensor& gradient) { calls += gradient.defined() ? 1 : 0; });
        ctx.scale_loss(error.mean()).backward();
        if (b.samples() > 0) {
          EXPECT_NEAR(error.grad().sum().item<float>(), static_cast<float>(b.samples()) / b.global_size, 1e-6);
        }
        optimizer.step(ctx);
      });
    }
    EXPECT_EQ(calls, has_hook ? 3 : 0) << "once for each replica that has samples";
    return model.state().at("weight").clone();
  };
  EXPECT_TRUE(torch::equal(weights(true), weights(false)));
}

}  // namespace
}  // namespace lockstep
