// Parameters that appear, or are replaced, after make_module: no optimizer would train them and they would differ on
// each replica, so they are found.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using torch::Tensor;

/// Registers a layer or a buffer in its forward, or replaces one, where it is told to.
struct Lazy : torch::nn::Module {
  Lazy() { first = register_module("first", torch::nn::Linear(2, 2)); }
  Tensor forward(const Tensor& x) { return first(x); }
  void replace() { first = replace_module("first", torch::nn::Linear(2, 2)); }
  torch::nn::Linear first = nullptr;
};

class LateRegistration : public ::testing::TestWithParam<int> {
 protected:
  using Model = Replicated<std::shared_ptr<Lazy>>;

  /// What GetParam() stands for, in a step, on the last replica alone.
  void happen() {
    strategy_.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() != 2) return;
      Lazy& lazy = *model_(ctx);
      if (GetParam() == 0) lazy.register_module("late", torch::nn::Linear(2, 2));
      if (GetParam() == 1) lazy.replace();
      if (GetParam() == 2) lazy.register_parameter("late", torch::ones({2}));
      if (GetParam() == 3) lazy.unregister_module("first");
      if (GetParam() == 4) lazy.register_buffer("late", torch::ones({2}));
    });
  }
  template <class Fn>
  void expect_found(const Fn& fn) {
    expect_error<UsageError>(fn, "LS-LATE-REGISTRATION", {"replica 2", "'model'"});
  }

  MirroredStrategy strategy_{{.devices = lanes(1), .replicas = 3, .verify_every = 2}};
  Model model_ = strategy_.make_module([] { return std::make_shared<Lazy>(); });
};

TEST_P(LateRegistration, IsFoundByCallsThatNeedAllParameters) {
  const auto state = model_.state();
  happen();
  expect_found([&] { model_.state(); });
  expect_found([&] { model_.load(state); });
  expect_found([&] { model_.export_module(); });
  expect_found([&] { strategy_.make_optimizer(model_, torch::optim::SGDOptions(1)); });
}

TEST_P(LateRegistration, IsFoundAtTheNextVerification) {
  happen();
  testing::expect_step_error<UsageError>([&] { strategy_.run([](ReplicaContext&) {}); }, "LS-LATE-REGISTRATION",
                                         {"replica 2", "'model'"});
}

INSTANTIATE_TEST_SUITE_P(Ways, LateRegistration, ::testing::Range(0, 5));

TEST(BoundModules, CannotBeAssignedAndAreTheReplicasOwnModulesOtherwise) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  auto holder = strategy.make_module([] { return torch::nn::Linear(2, 3); }, {.name = "a"});
  auto pointer = strategy.make_module([] { return std::make_shared<torch::nn::LinearImpl>(2, 3); }, {.name = "b"});
  using Holder = decltype(holder(std::declval<ReplicaContext&>()));
  using Pointer = decltype(pointer(std::declval<ReplicaContext&>()));
  static_assert(!std::is_assignable_v<Holder, torch::nn::Linear>);
  static_assert(!std::is_assignable_v<Holder, Holder>);
  static_assert(!std::is_assignable_v<Pointer, std::shared_ptr<torch::nn::LinearImpl>>);
  static_assert(!std::is_assignable_v<Pointer, std::nullptr_t>);
  const auto width = [](torch::nn::Linear& module) { return module->options.out_features(); };
  strategy.run([&](ReplicaContext& ctx) {
    auto& a = holder(ctx);
    torch::nn::Linear& same = holder(ctx);
    const torch::nn::Linear copy = holder(ctx);
    torch::nn::Linear direct(holder(ctx));
    std::shared_ptr<torch::nn::LinearImpl> b = pointer(ctx);
    const std::shared_ptr<torch::nn::Module> base = pointer(ctx);
    EXPECT_EQ(a->forward(torch::ones({1, 2})).size(1), 3);
    EXPECT_EQ(holder(ctx)(torch::ones({1, 2})).size(1), 3);
    EXPECT_EQ(width(holder(ctx)), 3);
    EXPECT_EQ((*pointer(ctx)).parameters().size(), 2u);
    EXPECT_EQ(same.get(), copy.get());
    EXPECT_EQ(direct.get(), a.get());
    EXPECT_EQ(b, base);
  });
}

TEST(BoundModules, ThatAreReplacedThroughAReferenceAreFoundAtTheNextUse) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto holder = strategy.make_module([] { return torch::nn::Linear(2, 3); });
  testing::expect_step_error<UsageError>(
      [&] {
        strategy.run([&](ReplicaContext& ctx) {
          torch::nn::Linear& module = holder(ctx);
          if (ctx.replica_id() == 1) module = torch::nn::Linear(2, 3);
          holder(ctx)->forward(torch::ones({1, 2}));
        });
      },
      "LS-LATE-REGISTRATION", {"replica 1", "'model'"});
}

TEST(Handles, CanBeMembersAndSayThatTheyAreEmpty) {
  struct Trainer {
    Replicated<torch::nn::Linear> model;
    Variable variable;
  } trainer;
  EXPECT_FALSE(trainer.model.defined());
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto& model = trainer.model;
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { model.variables(); }, [&] { model.state(); }, [&] { model.load({}); }, [&] { model.export_module(); },
           [&] { strategy.make_optimizer(model, torch::optim::SGDOptions(1)); }, [&] { trainer.variable.read(); }}) {
    expect_error<UsageError>(use, "LS-EMPTY-HANDLE");
  }
  testing::expect_step_error<UsageError>([&] { strategy.run([&](ReplicaContext& ctx) { model(ctx); }); },
                                         "LS-EMPTY-HANDLE");
  trainer.model = strategy.make_module([] { return torch::nn::Linear(2, 3); });
  EXPECT_TRUE(trainer.model.defined());
  EXPECT_EQ(trainer.model.state().size(), 2u);
}

TEST(Handles, KeepAFactoryThatCannotBeCopied) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto model =
      strategy.make_module([width = std::make_unique<int64_t>(3)] { return torch::nn::Linear(2, *width); });
  const auto same = model;
  EXPECT_EQ(same.export_module()->options.out_features(), 3);
}

}  // namespace
}  // namespace lockstep
