// Sparse gradients of embeddings: LibTorch's numbers, of the rows that a batch has and of nothing else.
#include <gtest/gtest.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "lockstep/testing/local_replicas.h"
#include "tests/support/host_update.h"
#include "tests/support/programs.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

using testing::error_from;
using testing::expect_error;
using testing::expect_step_error;
using testing::lanes;
using testing::wave;
using torch::Tensor;
namespace nn = torch::nn;
namespace optim = torch::optim;

constexpr int64_t kItems = 700;
constexpr int64_t kWidth = 20;  // rows lie across the borders of blocks

/// Lets `sparse` false stand for the same table with dense gradients.
nn::Embedding table_of(bool sparse, at::ScalarType type = torch::kFloat) {
  nn::Embedding table(nn::EmbeddingOptions(kItems, kWidth).sparse(sparse));
  const torch::NoGradGuard no_grad;
  table->weight.set_data(wave(kItems, kWidth).to(type));
  return table;
}

/// Twelve ids, of which some come twice, and others in every step.
Tensor ids_of(int64_t step) {
  const Tensor ids = torch::arange(12) * (37 + step) % kItems;
  ids.slice(0, 9) = torch::tensor({3, 3, 698});
  return ids;
}

/// The mean over a batch of ids, with other numbers in each row.
Tensor loss_of(const Tensor& rows) { return (rows * rows * wave(1, kWidth, 0.5).to(rows.scalar_type())).mean(); }

template <class Options>
Tensor trained(Strategy& strategy, const Options& options, bool sparse, const StepOptions& step_options = {},
               at::ScalarType type = torch::kFloat) {
  const auto model = strategy.make_module([&] { return table_of(sparse, type); });
  const auto optimizer = strategy.make_optimizer(model, options);
  for (int64_t step = 0; step < 6; ++step) {
    strategy.run(strategy.split(ids_of(step)), [&](ReplicaContext& ctx, const Batch& b) {
      ctx.scale_loss(loss_of(model(ctx)->forward(b.input))).backward();
      optimizer.step(ctx, step_options);
    });
  }
  return model.state().at("weight");
}

template <class Stock, class Options>
Tensor trained_by_torch(const Options& options) {
  nn::Embedding table = table_of(true);
  Stock stock(table->parameters(), options);
  for (int64_t step = 0; step < 6; ++step) {
    stock.zero_grad();
    loss_of(table->forward(ids_of(step))).backward();
    EXPECT_TRUE(table->weight.grad().is_sparse());
    stock.step();
  }
  return table->weight.detach();
}

class SparseGradients : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
};

void expect_close(const Tensor& found, const Tensor& expected, double tolerance = 1e-6) {
  EXPECT_TRUE(torch::allclose(found, expected, tolerance, tolerance)) << (found - expected).abs().max();
}

TEST_P(SparseGradients, StepAsLibTorchsSgd) {
  expect_close(trained(*strategy_, optim::SGDOptions(0.5), true), trained_by_torch<optim::SGD>(optim::SGDOptions(0.5)));
}

TEST_P(SparseGradients, StepAsLibTorchsSgdWithMomentumWhichMovesRowsWithoutGradients) {
  const auto options = optim::SGDOptions(0.5).momentum(0.9);
  expect_close(trained(*strategy_, options, true), trained_by_torch<optim::SGD>(options));
}

TEST_P(SparseGradients, StepAsLibTorchsAdagrad) {
  const auto options = optim::AdagradOptions(0.1).lr_decay(0.1).initial_accumulator_value(0.01);
  expect_close(trained(*strategy_, options, true), trained_by_torch<optim::Adagrad>(options), 1e-5);
}

TEST_P(SparseGradients, StepAsPythonsSparseAdam) {
  const double rate = 0.1;
  const double beta1 = 0.9;
  const double beta2 = 0.999;
  const double epsilon = 0.01;  // large enough to show where it is added
  Tensor weight = wave(kItems, kWidth).to(torch::kDouble);
  Tensor first = torch::zeros_like(weight);
  Tensor second = torch::zeros_like(weight);
  for (int64_t step = 0; step < 6; ++step) {
    Tensor leaf = weight.clone().requires_grad_();
    loss_of(nn::functional::embedding(ids_of(step), leaf)).backward();
    const Tensor ids = std::get<0>(at::_unique(ids_of(step)));
    const Tensor gradient = leaf.grad().index_select(0, ids);
    Tensor of_first = first.index_select(0, ids);
    Tensor of_second = second.index_select(0, ids);
    of_first += (gradient - of_first) * (1 - beta1);
    of_second += (gradient.pow(2) - of_second) * (1 - beta2);
    first.index_copy_(0, ids, of_first);
    second.index_copy_(0, ids, of_second);
    const double t = static_cast<double>(step) + 1;
    const double size = rate * std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t));
    weight.index_add_(0, ids, of_first / (of_second.sqrt() + epsilon) * -size);
  }
  const auto options = optim::AdamOptions(rate).betas({beta1, beta2}).eps(epsilon);
  expect_close(trained(*strategy_, options, true).to(torch::kDouble), weight, 1e-5);
}

TEST_P(SparseGradients, HaveTheBitsOfDenseOnesWhereZerosChangeNothing) {
  const auto other = GetParam().make();
  EXPECT_TRUE(
      torch::equal(trained(*strategy_, optim::SGDOptions(0.5), true), trained(*other, optim::SGDOptions(0.5), false)));
  const auto third = GetParam().make();
  const auto fourth = GetParam().make();
  EXPECT_TRUE(torch::equal(trained(*third, optim::AdagradOptions(0.1), true),
                           trained(*fourth, optim::AdagradOptions(0.1), false)));
}

TEST_P(SparseGradients, OfOtherDtypesAreAddedAndRoundedAsDenseOnes) {
  for (const at::ScalarType type : {torch::kDouble, torch::kBFloat16}) {
    const auto one = GetParam().make();
    const auto other = GetParam().make();
    const Tensor rows = trained(*one, optim::AdagradOptions(0.1), true, {}, type);
    const Tensor dense = trained(*other, optim::AdagradOptions(0.1), false, {}, type);
    EXPECT_EQ(rows.scalar_type(), type);
    expect_close(rows.to(torch::kDouble), dense.to(torch::kDouble), type == torch::kDouble ? 1e-14 : 0.02);
  }
}

TEST_P(SparseGradients, LeaveAllOtherRowsAndTheirSlotsAlone) {
  const auto model = strategy_->make_module([] { return table_of(true); });
  const auto optimizer = strategy_->make_optimizer(model, optim::AdamOptions(0.1));
  const auto step = [&](const std::vector<int64_t>& ids) {
    strategy_->run([&](ReplicaContext& ctx) {
      model(ctx)->forward(torch::tensor(ids)).sum().backward();
      optimizer.step(ctx);
    });
  };
  step({5, 6});
  const Tensor weight = model.state().at("weight");
  const Tensor first = optimizer.state().at("model.weight/exp_avg");
  EXPECT_TRUE(first[6].ne(0).all().item<bool>());
  step({5});
  EXPECT_FALSE(torch::equal(model.state().at("weight")[5], weight[5]));
  EXPECT_TRUE(torch::equal(model.state().at("weight").slice(0, 6), weight.slice(0, 6)));
  EXPECT_TRUE(torch::equal(optimizer.state().at("model.weight/exp_avg").slice(0, 6), first.slice(0, 6)));
  EXPECT_EQ(optimizer.state().at("model.weight/step").item<int64_t>(), 2);
}

TEST_P(SparseGradients, AccumulateOverBackwardsAndCountAsEmptyWithoutIds) {
  const auto model = strategy_->make_module([] { return table_of(true); });
  const auto optimizer = strategy_->make_optimizer(model, optim::SGDOptions(1));
  const Tensor before = model.state().at("weight");
  const auto infos = strategy_->run([&](ReplicaContext& ctx) {
    if (ctx.replica_id().value() > 0) {
      model(ctx)->forward(torch::zeros({0}, torch::kLong)).sum().backward();
    } else {
      model(ctx)->forward(torch::tensor({4, 4})).sum().backward();
      model(ctx)->forward(torch::tensor({4, 9})).sum().backward();
    }
    return torch::tensor(optimizer.step(ctx).applied);
  });
  for (const Tensor& applied : infos) EXPECT_TRUE(applied.item<bool>());
  const Tensor moved = before - model.state().at("weight");
  expect_close(moved[4], torch::full({kWidth}, 3.f));
  expect_close(moved[9], torch::full({kWidth}, 1.f));
  EXPECT_EQ(moved.ne(0).any(1).sum().item<int64_t>(), 2);
}

TEST_P(SparseGradients, AreWeightedByPartsThatMayBeEmpty) {
  const auto model = strategy_->make_module([] { return table_of(true); });
  const auto optimizer = strategy_->make_optimizer(model, optim::SGDOptions(1));
  const Tensor before = model.state().at("weight");
  // One sample: all replicas but one have none.
  strategy_->run(strategy_->split(torch::tensor({8})), [&](ReplicaContext& ctx, const Batch& b) {
    ctx.scale_loss(model(ctx)->forward(b.input).sum(1).mean()).backward();
    optimizer.step(ctx);
  });
  const Tensor moved = before - model.state().at("weight");
  expect_close(moved[8], torch::ones({kWidth}));
  EXPECT_EQ(moved.ne(0).any(1).sum().item<int64_t>(), 1);
}

TEST_P(SparseGradients, OfOneUseAreDenseBesideADenseOne) {
  const auto program = [](Strategy& strategy, bool sparse, bool on_one_replica) {
    const auto model = strategy.make_module([&] { return table_of(sparse); });
    const auto optimizer = strategy.make_optimizer(model, optim::AdagradOptions(0.1));
    strategy.run([&](ReplicaContext& ctx) {
      Tensor loss = loss_of(model(ctx)->forward(ids_of(ctx.replica_id().value())));
      if (!on_one_replica || ctx.replica_id().value() == 0) loss = loss + model(ctx)->weight.pow(2).mean();
      loss.backward();
      optimizer.step(ctx, {.loss_scaled_by_hand = true});
    });
    return model.state().at("weight");
  };
  for (const bool on_one_replica : {false, true}) {
    const auto one = GetParam().make();
    const auto other = GetParam().make();
    expect_close(program(*one, true, on_one_replica), program(*other, false, on_one_replica));
  }
}

TEST_P(SparseGradients, AreClippedByTheNormOfTheirSum) {
  const auto other = GetParam().make();
  const StepOptions clipped{.clip_global_norm = 0.01};
  expect_close(trained(*strategy_, optim::SGDOptions(1), true, clipped),
               trained(*other, optim::SGDOptions(1), false, clipped));
}

TEST_P(SparseGradients, ThatAreNotFiniteStopTheStepAsAWhole) {
  const auto model = strategy_->make_module([] { return table_of(true); });
  const auto optimizer = strategy_->make_optimizer(model, optim::AdagradOptions(0.1));
  const Tensor before = model.state().at("weight");
  const auto step = [&](double factor, const StepOptions& options) {
    strategy_->run([&](ReplicaContext& ctx) {
      (model(ctx)->forward(torch::tensor({3, 5})).sum() * factor).backward();
      optimizer.step(ctx, options);
    });
  };
  const double infinite = std::numeric_limits<double>::infinity();
  expect_step_error<NonFiniteError>([&] { step(infinite, {.check_finite = true}); }, "LS-NOT-FINITE",
                                    {"'model.weight'", "replica 0"});
  step(infinite, {.skip_non_finite = true});
  EXPECT_TRUE(torch::equal(model.state().at("weight"), before));
  EXPECT_EQ(optimizer.state().at("model.weight/step").item<int64_t>(), 0);
  step(1, {.check_finite = true});
  EXPECT_EQ(model.state().at("weight").ne(before).any(1).sum().item<int64_t>(), 2);
}

TEST_P(SparseGradients, FindAForeignWriteInABlockOfTheirRows) {
  const auto model = strategy_->make_module([] { return table_of(true); });
  const auto optimizer = strategy_->make_optimizer(model, optim::SGDOptions(0.1));
  expect_step_error<DivergenceError>(
      [&] {
        strategy_->run([&](ReplicaContext& ctx) {
          if (ctx.replica_id().value() == 0) model(ctx)->weight.data_ptr<float>()[4 * kWidth] += 1;  // beside row 5
          model(ctx)->forward(torch::tensor({5})).sum().backward();
          optimizer.step(ctx);
        });
      },
      "LS-FOREIGN-WRITE", {"'model.weight'"});
}

TEST_P(SparseGradients, AreRefusedByRulesThatLibTorchRefuses) {
  const auto refused = [&](const auto& options, const char* what) {
    const auto strategy = GetParam().make();
    expect_step_error<UsageError>([&] { trained(*strategy, options, true); }, "LS-NOT-DENSE",
                                  {"'model.weight'", what, "SparseAdam"});
  };
  refused(optim::RMSpropOptions(0.1), "RMSprop");
  refused(optim::AdamWOptions(0.1), "AdamW");
  refused(optim::AdamOptions(0.1).amsgrad(true), "Adam with amsgrad");
  refused(optim::AdamOptions(0.1).weight_decay(0.1), "Adam with weight_decay");
  refused(optim::AdagradOptions(0.1).weight_decay(0.1), "Adagrad with weight_decay");
  refused(optim::SGDOptions(0.1).weight_decay(0.1), "SGD with weight_decay");
}

TEST_P(SparseGradients, AreRefusedOnceAWeightDecayIsSet) {
  const auto model = strategy_->make_module([] { return table_of(true); });
  const auto optimizer = strategy_->make_optimizer(model, optim::AdagradOptions(0.1));
  const auto step = [&] {
    strategy_->run(strategy_->split(ids_of(0)), [&](ReplicaContext& ctx, const Batch& b) {
      ctx.scale_loss(loss_of(model(ctx)->forward(b.input))).backward();
      optimizer.step(ctx);
    });
  };
  step();
  optimizer.set_weight_decay(0.1);
  expect_step_error<UsageError>(step, "LS-NOT-DENSE", {"'model.weight'", "Adagrad with weight_decay", "SparseAdam"});
  optimizer.set_weight_decay(0);
  step();
}

TEST_P(SparseGradients, OfAVariableMayHaveRowsOfSeveralDimensions) {
  const Variable v = strategy_->make_variable(torch::zeros({4, 2, 3}), {.name = "v"});
  const auto optimizer = strategy_->make_optimizer(std::vector<Variable>{v}, optim::SGDOptions(1));
  strategy_->run([&](ReplicaContext& ctx) {
    const Tensor values = ctx.replica_id().value() == 0 ? torch::ones({2, 2, 3}) : torch::zeros({2, 2, 3});
    v.value(ctx).mutable_grad() = torch::sparse_coo_tensor(torch::tensor({{3, 1}}), values, {4, 2, 3});
    optimizer.step(ctx);
  });
  Tensor expected = torch::zeros({4, 2, 3});
  expected[1].fill_(-1);
  expected[3].fill_(-1);
  EXPECT_TRUE(torch::equal(v.read(), expected));
}

INSTANTIATE_TEST_SUITE_P(Strategies, SparseGradients, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(SparseGradientsOnLanes, HaveTheSameBits) {
  const StepOptions clipped{.clip_global_norm = 0.05};
  MirroredStrategy one({.devices = lanes(1), .replicas = 5});
  const Tensor expected = trained(one, optim::AdamOptions(0.1), true, clipped);
  for (const int count : {2, 3, 5}) {
    MirroredStrategy strategy({.devices = lanes(count), .replicas = 5});
    EXPECT_TRUE(torch::equal(trained(strategy, optim::AdamOptions(0.1), true, clipped), expected)) << count;
  }
}

TEST(SparseGradientsOnWorkers, HaveTheBitsOfOneWorkerInEachForm) {
  const auto program = [](Strategy& strategy) {
    const auto model = strategy.make_module([] { return table_of(true); });
    const Variable dense = strategy.make_variable(wave(90, 70), {.name = "dense"});
    std::vector<Variable> all = model.variables();
    all.push_back(dense);
    const auto optimizer = strategy.make_optimizer(all, optim::AdagradOptions(0.1));
    for (int64_t step = 0; step < 4; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        const int64_t r = ctx.replica_id().value();
        Tensor loss = (dense.value(ctx) * static_cast<double>(r + 1)).sin().sum();
        // The last step has a dense gradient on one worker.
        if (r != 1) loss = loss + loss_of(model(ctx)->forward(ids_of(step + r)));
        if (r == 3 && step == 3) loss = loss + model(ctx)->weight.pow(2).sum();
        loss.backward();
        optimizer.step(ctx, {.loss_scaled_by_hand = true});
      });
    }
    std::vector<std::string> digests;
    for (const Variable& one : all)
      digests.push_back(sha256_of(std::vector<std::pair<std::string, Tensor>>{{"", one.read()}}));
    for (const Variable& one : optimizer.slots())
      digests.push_back(sha256_of(std::vector<std::pair<std::string, Tensor>>{{"", one.read()}}));
    return digests;
  };
  testing::expect_same_in_all_forms(program, /*can_ask=*/false);
}

TEST(SparseGradientsOnWorkers, TravelAsRows) {
  for (const char* const memory : {"auto", "off"}) {
    const testing::HostMemoryIs host_memory(memory);
    const auto texts = testing::run_workers({2, 4, 1}, [](Strategy& strategy) {
      const auto model = strategy.make_module([] { return table_of(true); });
      const auto optimizer = strategy.make_optimizer(model, optim::AdamOptions(0.1));
      strategy.run([&](ReplicaContext& ctx) {
        model(ctx)->forward(torch::tensor({4, 4, 9})).sum().backward();
        optimizer.step(ctx, {.clip_global_norm = 1});
      });
      return strategy.describe();
    });
    // Two replicas of two rows, each with its id.
    const std::string bytes = std::to_string(2 * 2 * (8 + 4 * kWidth)) + " B";
    for (const std::string& text : texts) {
      EXPECT_TRUE(testing::has_value(text, "rows")) << text;
      EXPECT_TRUE(testing::has_value(text, bytes)) << text;
    }
  }
}

TEST(SparseGradientsOnWorkers, WithSlicedSlotsAreRefused) {
  const testing::SlotsAre sliced("sliced");
  testing::expect_step_error_on_all<Error>(
      {2, 4, 1}, [](Strategy& strategy) { trained(strategy, optim::AdagradOptions(0.1), true); }, "LS-NOT-DENSE",
      {"sliced slots"});
}

class SparseCheckpoint : public testing::ScratchFolder {
 protected:
  Tensor run(int64_t from, int64_t to) const {
    MirroredStrategy strategy({.devices = lanes(2), .replicas = 3, .seed = 1});
    const auto model = strategy.make_module([] { return table_of(true); });
    const auto optimizer = strategy.make_optimizer(model, optim::AdamOptions(0.1));
    Checkpoint checkpoint(strategy);
    if (from > 0) checkpoint.restore(path("one"));
    for (int64_t step = from; step < to; ++step) {
      strategy.run(strategy.split(ids_of(step)), [&](ReplicaContext& ctx, const Batch& b) {
        ctx.scale_loss(loss_of(model(ctx)->forward(b.input))).backward();
        optimizer.step(ctx);
      });
      if (from == 0 && step == 2) checkpoint.save(path("one"));
    }
    return model.state().at("weight");
  }
};

TEST_F(SparseCheckpoint, GoesOnWithTheSameBits) {
  const Tensor whole = run(0, 6);
  EXPECT_TRUE(torch::equal(run(3, 6), whole));
}

}  // namespace
}  // namespace lockstep
