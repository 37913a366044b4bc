// Writes to a mirrored variable that did not come through the library: each is found, named, and stays an error until
// the variable is assigned or loaded.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <vector>

#include "lockstep/variable/kinds/mirrored_state.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::error_from;
using testing::expect_error;
using testing::lanes;
using testing::make_program;
using testing::Program;
using torch::Tensor;

struct Shape {
  int64_t replicas;
  int num_lanes;
  Copies copies;
};

class ForeignWrites : public ::testing::TestWithParam<Shape> {
 protected:
  ForeignWrites()
      : strategy_({.devices = lanes(GetParam().num_lanes),
                   .replicas = GetParam().replicas,
                   .copies = GetParam().copies,
                   .verify_every = 4}),
        model_(strategy_.make_module([] { return torch::nn::Linear(70, 70); })),
        optimizer_(strategy_.make_optimizer(model_, torch::optim::SGDOptions(0.1))) {}

  /// The last replica, which is the one that misbehaves.
  ReplicaId bad() const { return GetParam().replicas - 1; }

  void good_step() {
    strategy_.run([&](ReplicaContext& ctx) {
      model_(ctx)->forward(torch::ones({1, 70})).sum().backward();
      optimizer_.step(ctx);
    });
  }
  /// A run in which the bad replica does something to its own module.
  template <class Fn>
  void run_with(Fn fn) {
    strategy_.run([&](ReplicaContext& ctx) {
      model_(ctx)->forward(torch::ones({1, 70})).sum().backward();
      if (ctx.replica_id() == bad()) fn(model_(ctx));
    });
  }
  /// What the run in which `fn` writes ends with.
  template <class Fn>
  DivergenceError found_at_once(Fn fn) {
    good_step();
    return found_in([&] { run_with(fn); });
  }
  /// What the run after that one ends with.
  template <class Fn>
  DivergenceError found_at_the_next_update(Fn fn) {
    good_step();
    run_with(fn);
    return found_in([&] { good_step(); });
  }
  /// The DivergenceError of the replica itself: the text of the ReplicaError names replicas of its own.
  template <class Fn>
  static DivergenceError found_in(Fn fn) {
    const auto error = error_from<ReplicaError>(fn);
    return error_from<DivergenceError>([&] { std::rethrow_if_nested(error); });
  }
  static void expect_found(const DivergenceError& error, std::initializer_list<std::string_view> values,
                           const testing::Where& where = testing::Where::current()) {
    expect_error<DivergenceError>([&] { throw error; }, "LS-FOREIGN-WRITE", values, where);
  }
  std::string bad_replica() const { return "replica " + std::to_string(bad().value()); }

  MirroredStrategy strategy_;
  Replicated<torch::nn::Linear> model_;
  Optimizer optimizer_;
};

template <class Optimizer, class Options>
auto stock(Options options) {
  return [options](torch::nn::Linear& linear) {
    Optimizer optimizer(linear->parameters(), options);
    optimizer.step();
  };
}

TEST_P(ForeignWrites, StockOptimizersAreFoundInTheSameRunWithReplicaAndVariable) {
  using namespace torch::optim;
  const std::vector<std::function<void(torch::nn::Linear&)>> stocks{
      stock<Adam>(AdamOptions(0.1)), stock<AdamW>(AdamWOptions(0.1)), stock<RMSprop>(RMSpropOptions(0.1)),
      stock<Adagrad>(AdagradOptions(0.1))};
  for (const auto& step : stocks) {
    const std::string replica = bad_replica();
    expect_found(found_at_once(step), {"variable 'model.weight'", replica});
    for (const Variable& variable : model_.variables()) variable.assign(torch::zeros(variable.sizes()));
  }
}

TEST_P(ForeignWrites, StockSgdIsFoundAtTheNextUpdate) {
  // In LibTorch's C++ SGD writes through .data(), which moves no version counter.
  expect_found(found_at_the_next_update(stock<torch::optim::SGD>(torch::optim::SGDOptions(0.1))),
               {"variable 'model.weight'"});
}

TEST_P(ForeignWrites, AWriteThroughDataIsFoundAtTheNextUpdate) {
  const auto error = found_at_the_next_update([](torch::nn::Linear& linear) { linear->bias.data()[69] += 0.25; });
  expect_found(error, {"variable 'model.bias'"});
  EXPECT_FALSE(testing::has_value(error.what(), "'model.weight'")) << error.what();
}

TEST_P(ForeignWrites, AWriteThroughARawPointerIsFoundAtTheNextUpdate) {
  const auto error = found_at_the_next_update([](torch::nn::Linear& linear) {
    linear->weight.data_ptr<float>()[4899] = -linear->weight.data_ptr<float>()[4899];
  });
  expect_found(error, {"variable 'model.weight'"});
}

TEST_P(ForeignWrites, AreFoundWhereTheValueIsReadWithoutAnUpdateBetween) {
  const auto write = stock<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  Variable weight;
  for (const Variable& one : model_.variables()) {
    if (one.name() == "model.weight") weight = one;
  }
  const std::vector<std::function<void()>> reads{[&] { weight.read(); }, [&] { weight.components(); },
                                                 [&] { model_.state(); }, [&] { model_.export_module(); }};
  for (const auto& read : reads) {
    good_step();
    run_with(write);
    expect_error<DivergenceError>(read, "LS-FOREIGN-WRITE", {"variable 'model.weight'"});
    for (const Variable& variable : model_.variables()) variable.assign(torch::zeros(variable.sizes()));
    EXPECT_NO_THROW(read());
    for (int i = 0; i < 2; ++i) good_step();  // so that the next write is not in a run that verifies
  }
}

TEST_P(ForeignWrites, AWriteInPlaceIsFoundInTheSameRun) {
  const auto error = found_at_once([](torch::nn::Linear& linear) {
    const torch::NoGradGuard no_grad;
    linear->weight.mul_(2);
  });
  const std::string replica = bad_replica();
  expect_found(error, {"variable 'model.weight'", replica, "in place", "step 1"});
}

TEST_P(ForeignWrites, OtherMemoryIsFoundInTheSameRun) {
  const auto error = found_at_once([](torch::nn::Linear& linear) { linear->weight.set_data(torch::zeros({70, 70})); });
  const std::string replica = bad_replica();
  expect_found(error, {"variable 'model.weight'", replica, "other memory"});
}

TEST_P(ForeignWrites, OtherStridesOverTheSameMemoryAreFoundInTheSameRun) {
  const auto error =
      found_at_once([](torch::nn::Linear& linear) { linear->weight.set_data(linear->weight.data().t()); });
  const std::string replica = bad_replica();
  expect_found(error, {"variable 'model.weight'", replica, "other memory"});
}

TEST_P(ForeignWrites, AnotherDtypeIsFoundInTheSameRun) {
  const auto error = found_at_once([](torch::nn::Linear& linear) { linear->to(torch::kDouble); });
  const std::string replica = bad_replica();
  expect_found(error, {"variable 'model.weight'", replica, "Float", "Double"});
}

TEST_P(ForeignWrites, AreFoundEveryVerifyEveryRunsWhereNoUpdateComes) {
  good_step();
  run_with([](torch::nn::Linear& linear) { linear->weight.data()[0][0] += 1; });
  strategy_.run([](ReplicaContext&) {});
  expect_found(found_in([&] { strategy_.run([](ReplicaContext&) {}); }), {"variable 'model.weight'"});  // the fourth
}

TEST_P(ForeignWrites, MakeEveryUseTheSameErrorUntilTheVariableIsAssigned) {
  const auto error = found_at_once([](torch::nn::Linear& linear) {
    const torch::NoGradGuard no_grad;
    linear->weight.add_(1);
  });
  const std::string replica = bad_replica();
  expect_found(error, {"variable 'model.weight'", replica, "step 1"});
  const Variable weight = model_.variables()[0];
  for (const auto& use :
       std::vector<std::function<void()>>{[&] { weight.read(); }, [&] { weight.components(); }, [&] { model_.state(); },
                                          [&] {
                                            weight.assign_add(torch::ones({70, 70}));
                                          }}) {
    EXPECT_STREQ(error_from<DivergenceError>(use).what(), error.what());
  }
  for (const auto& step : std::vector<std::function<void(ReplicaContext&)>>{
           [&](ReplicaContext& ctx) { model_(ctx); }, [&](ReplicaContext& ctx) { weight.value(ctx); }}) {
    EXPECT_STREQ(found_in([&] { strategy_.run([&](ReplicaContext& ctx) { step(ctx); }); }).what(), error.what());
  }
  EXPECT_STREQ(found_in([&] { good_step(); }).what(), error.what());
  weight.assign(torch::ones({70, 70}));
  good_step();
  EXPECT_EQ(weight.read().sizes(), (std::vector<int64_t>{70, 70}));
}

TEST_P(ForeignWrites, AreHealedByLoadAlsoWhereMemoryOrDtypeWasChanged) {
  const auto state = model_.state();
  for (int kind = 0; kind < 4; ++kind) {
    found_at_once([&](torch::nn::Linear& linear) {
      if (kind == 0) linear->to(torch::kDouble);
      if (kind == 1) linear->weight.set_data(torch::zeros({70, 70}));
      if (kind == 2) linear->weight.set_data(torch::zeros({70, 35}));
      if (kind == 3) linear->weight.set_data(linear->weight.data().t());
    });
    model_.load(state);
    for (const auto& [name, value] : model_.state()) EXPECT_TRUE(torch::equal(value, state.at(name)));
    good_step();
    good_step();
    model_.load(state);
  }
}

TEST_P(ForeignWrites, LeaveTheOtherVariablesUsable) {
  found_at_the_next_update([](torch::nn::Linear& linear) { linear->bias.data()[0] += 1; });
  EXPECT_EQ(model_.variables()[0].read().size(0), 70);
  expect_error<DivergenceError>([&] { model_.variables()[1].read(); }, "LS-FOREIGN-WRITE", {"variable 'model.bias'"});
}

TEST_P(ForeignWrites, AreFoundAmongManyVariablesAlsoWhenSomeOfThemAreGone) {
  std::vector<Variable> kept;
  {
    std::vector<Variable> gone;
    for (int i = 0; i < 40; ++i) (i % 3 == 0 ? gone : kept).push_back(strategy_.make_variable(torch::ones({3})));
  }
  kept.push_back(strategy_.make_variable(torch::ones({3})));  // the library lets go of what nobody has
  for (const Variable& written : {kept.front(), kept[13], kept.back()}) {
    const auto error = found_in([&] {
      strategy_.run([&](ReplicaContext& ctx) {
        const torch::NoGradGuard no_grad;
        if (ctx.replica_id() == bad()) written.value(ctx).add_(1);
      });
    });
    const std::string name = "variable '" + written.name() + "'";
    const std::string replica = bad_replica();
    expect_found(error, {name, replica});
    written.assign(torch::ones({3}));
  }
  good_step();
}

TEST_P(ForeignWrites, BeforeAStepKeepItFromBeingApplied) {
  good_step();
  const auto before = model_.variables()[1].read();
  const auto error = found_in([&] {
    strategy_.run([&](ReplicaContext& ctx) {
      model_(ctx)->forward(torch::ones({1, 70})).sum().backward();
      if (ctx.replica_id() == bad()) {
        const torch::NoGradGuard no_grad;
        model_(ctx)->weight.add_(1);
      }
      optimizer_.step(ctx);
    });
  });
  expect_found(error, {"variable 'model.weight'"});
  EXPECT_TRUE(torch::equal(model_.variables()[1].read(), before));
}

TEST_P(ForeignWrites, AreFoundInMemoryThatAVariableWasBoundTo) {
  internal::VariableState& weight = model_.variables()[0].state();
  const Tensor before = weight.read();
  std::vector<Tensor> memory;
  for (const Tensor& copy : weight.copies()) memory.push_back(torch::empty_like(copy));
  weight.as_mirrored().bind(memory);
  EXPECT_TRUE(torch::equal(weight.read(), before));
  good_step();
  EXPECT_FALSE(torch::equal(weight.read(), before));
  for (const Tensor& one : memory) EXPECT_TRUE(torch::equal(one, weight.read())) << "the new memory is the trained one";
  expect_found(found_at_the_next_update([](torch::nn::Linear& linear) { linear->weight.data()[0][0] += 1; }),
               {"variable 'model.weight'"});
}

TEST_P(ForeignWrites, InACopyOfOneReplicaNameTheReplica) {
  good_step();
  run_with([](torch::nn::Linear& linear) { linear->bias.data()[69] += 0.25; });
  const auto error = error_from<DivergenceError>([&] { model_.variables()[1].assign_add(torch::ones({70})); });
  expect_found(error, {"variable 'model.bias'"});
  const bool known = GetParam().copies == Copies::kPerReplica || GetParam().replicas == 1;
  EXPECT_EQ(testing::has_value(error.what(), bad_replica()), known) << error.what();
}

TEST_P(ForeignWrites, AForwardPassThatRenormalizesItsWeightIsToldAsThat) {
  const auto table = strategy_.make_module(
      [] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).max_norm(1e-3)); }, {.name = "table"});
  const auto error = found_in([&] {
    strategy_.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() == bad()) table(ctx)->forward(torch::tensor({1, 2}));
    });
  });
  const std::string replica = bad_replica();
  expect_found(error, {"variable 'table.weight'", replica, "max_norm", "Strategy::update"});
}

INSTANTIATE_TEST_SUITE_P(Shapes, ForeignWrites,
                         ::testing::Values(Shape{1, 1, Copies::kPerMemory}, Shape{4, 2, Copies::kPerMemory},
                                           Shape{3, 1, Copies::kPerReplica}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.replicas) + "D" +
                                  std::to_string(shape.param.num_lanes) +
                                  (shape.param.copies == Copies::kPerMemory ? "PerMemory" : "PerReplica");
                         });

struct ApartSynchronization : Synchronization {
  std::string describe() const override { return "never"; }
  bool averages_after(int64_t) const override { return false; }
  bool trains_locally(const NewVariable& variable) const override { return variable.parameter; }
};

struct ApartStrategy : Strategy {
  ApartStrategy()
      : Strategy({.name = "Apart",
                  .topology = std::make_shared<HostTopology>(lanes(1), 2),
                  .synchronization = std::make_shared<ApartSynchronization>()}) {}
};

TEST(TrainedLocally, OtherMemoryIsHealedByAssignAndLoad) {
  ApartStrategy strategy;
  const auto model = strategy.make_module([] { return torch::nn::Linear(3, 3); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.5).momentum(0.5));
  const auto step = [&](ReplicaContext& ctx) {
    model(ctx)->weight.sum().backward();
    optimizer.step(ctx);
  };
  const auto initial = model.state();
  for (int way = 0; way < 2; ++way) {
    testing::expect_step_error<DivergenceError>(
        [&] {
          strategy.run([&](ReplicaContext& ctx) {
            if (ctx.replica_id() == 1) model(ctx)->weight.set_data(torch::zeros({3, 3}));
          });
        },
        "LS-FOREIGN-WRITE", {"'model.weight'", "replica 1"});
    if (way == 0) model.variables()[0].assign(initial.at("weight"));
    if (way == 1) model.load(initial);
    EXPECT_TRUE(torch::equal(model.state().at("weight"), initial.at("weight")));
    strategy.run(step);
    const auto after = model.variables()[0].components();
    EXPECT_TRUE(torch::equal(after[0], after[1])) << "both replicas were trained";
    EXPECT_FALSE(torch::equal(after[0], initial.at("weight")));
    model.load(initial);
  }
}

TEST(OwnWrites, AreNeverTakenForForeignOnes) {
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 4, .verify_every = 1});
  const auto model = strategy.make_module([] { return make_program("cnn"); });
  const auto optimizer = testing::make_optimizer(strategy, model, "adam");
  const auto data = strategy.distribute(testing::make_data("cnn", 40), {.global_batch = 20});
  const auto step = [&](ReplicaContext& ctx, const Batch& part) {
    ctx.scale_loss(model(ctx)->loss(part.input, part.target)).backward();
    optimizer.step(ctx);
  };
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      strategy.run(batch, step);
      strategy.evaluate(
          batch, [&](ReplicaContext& ctx, const Batch& part) { return model(ctx)->loss(part.input, part.target); });
    }
    model.load(model.state());
    for (const Variable& variable : model.variables()) {
      variable.assign_add(torch::ones(variable.sizes()));
      strategy.update(variable, [](Tensor& value) { value.sub_(1); });
    }
  }
}

}  // namespace
}  // namespace lockstep
