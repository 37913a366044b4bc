// A listener in the steps of replicas: it hears all that a step computes, changes no bit, and is not there where nobody
// has asked for it.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/functional/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/torch_compat.h"
#include "lockstep/intercept/keys.h"
#include "lockstep/intercept/scopes.h"
#include "tests/intercept/recording_listener.h"
#include "tests/support/errors.h"
#include "tests/support/factored.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using internal::ListeningScope;
using testing::HeardCall;
using testing::lanes;
using testing::RecordingListener;
using torch::Tensor;
namespace F = torch::nn::functional;

Tensor numbers(at::IntArrayRef sizes, double phase) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return torch::arange(count, torch::kFloat).mul(0.37).add(phase).sin().reshape(sizes);
}

/// A training run of two layers with dropout, and who listens to it.
struct Listened {
  int steps = 3;
  bool listens = true;
  int num_lanes = 1;
  bool evaluates = false;
};

/// What a run has computed, and what its listeners have heard: for each replica one list for each step.
struct Result {
  std::vector<Tensor> values;
  std::vector<std::vector<std::vector<HeardCall>>> heard;
};

Result run(const Listened& plan) {
  MirroredStrategy strategy({.devices = lanes(plan.num_lanes), .replicas = 2, .seed = 5});
  const Variable w = strategy.make_variable(numbers({64, 400}, 1).div(8), {.name = "w"});
  const Variable v = strategy.make_variable(numbers({10, 64}, 2).div(8), {.name = "v"});
  const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w, v}, torch::optim::AdamWOptions(1e-2));
  Result result;
  result.heard.resize(2);
  std::mutex mutex;
  for (int step = 0; step < plan.steps; ++step) {
    const auto body = [&](ReplicaContext& ctx) {
      RecordingListener listener;
      std::optional<ListeningScope> scope;
      if (plan.listens) scope.emplace(listener);
      const double phase = static_cast<double>(ctx.replica_id()) + step;
      const Tensor x = numbers({8, 400}, phase).requires_grad_();
      const Tensor hidden = F::dropout(torch::relu(F::linear(x, w.value(ctx))), F::DropoutFuncOptions().p(0.25));
      Tensor y = F::linear(hidden, v.value(ctx));
      y.add_(1);
      const Tensor loss = y.view({-1}).square().mean();
      std::vector<Tensor> values{loss.detach().clone()};
      if (!plan.evaluates) {
        ctx.scale_loss(loss, 1, 2).backward();
        scope.reset();
        for (const Variable& one : {w, v}) values.push_back(one.value(ctx).grad().clone());
        values.push_back(x.grad());
        optimizer.step(ctx);
      }
      const std::lock_guard<std::mutex> lock(mutex);
      result.heard[static_cast<std::size_t>(ctx.replica_id().value())].push_back(listener.calls());
      return values;
    };
    for (const std::vector<Tensor>& one : plan.evaluates ? strategy.evaluate(body) : strategy.run(body)) {
      result.values.insert(result.values.end(), one.begin(), one.end());
    }
  }
  result.values.push_back(w.read());
  result.values.push_back(v.read());
  return result;
}

void expect_same_bits(const Result& a, const Result& b) {
  ASSERT_EQ(a.values.size(), b.values.size());
  for (std::size_t i = 0; i < a.values.size(); ++i) EXPECT_TRUE(torch::equal(a.values[i], b.values[i])) << i;
}

std::size_t count(const std::vector<HeardCall>& calls, const std::string& name) {
  std::size_t n = 0;
  for (const HeardCall& one : calls) n += one.name == name || one.name.rfind(name + ".", 0) == 0;
  return n;
}

TEST(StepListener, HearsForwardAndBackwardTheSameInEachStepOnEachReplica) {
  for (const int num_lanes : {1, 2}) {
    const Result result = run({.num_lanes = num_lanes});
    const std::vector<HeardCall>& first = result.heard[0][0];
    for (const auto& replica : result.heard) {
      ASSERT_EQ(replica.size(), 3U);
      for (const auto& step : replica) EXPECT_EQ(step, first);
    }
    EXPECT_EQ(count(first, "aten::mm"), 6U) << "two outputs, two gradients of weights, two of inputs";
    EXPECT_EQ(count(first, "aten::relu"), 1U);
    EXPECT_EQ(count(first, "aten::bernoulli_") + count(first, "aten::native_dropout"), 1U);
    EXPECT_EQ(count(first, "aten::threshold_backward"), 1U);
    std::size_t in_place = 0, views = 0;
    for (const HeardCall& one : first) {
      EXPECT_GE(one.outputs, 1U) << one;
      in_place += one.is_in_place;
      views += one.is_view;
    }
    EXPECT_GE(in_place, 2U) << "the step's add_, the dropout's mask";
    EXPECT_GE(views, 4U) << "transposed weights and gradients, y.view()";
  }
}

TEST(StepListener, ChangesNoBit) {
  for (const char* products : {"off", "always"}) {
    for (const char* factored : {"off", "always"}) {
      const testing::FewSamplesProductsAre few(products);
      const testing::FactoredGradientsAre factors(factored);
      const Result without = run({.listens = false});
      expect_same_bits(run({}), without);
      expect_same_bits(run({.num_lanes = 2}), without);
    }
  }
}

TEST(StepListener, HearsWhatTheLibraryAnswersAsLibTorchsProducts) {
  const auto heard = [&](const char* kind) {
    const testing::FewSamplesProductsAre few(kind);
    const testing::FactoredGradientsAre factors(kind);
    return run({.steps = 1}).heard[0][0];
  };
  const int64_t before = internal::num_few_samples_products();
  const std::vector<HeardCall> ours = heard("always");
  if (testing::can_factor()) {
    EXPECT_GT(internal::num_few_samples_products(), before);
  }
  const std::vector<HeardCall> theirs = heard("off");
  EXPECT_EQ(count(ours, "aten::mm"), count(theirs, "aten::mm"));
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].name, theirs[i].name) << i;
    EXPECT_EQ(ours[i].inputs, theirs[i].inputs) << i;
    EXPECT_EQ(ours[i].outputs, theirs[i].outputs) << i;
  }
}

TEST(StepListener, SeesAGradientThatIsKeptAsFactors) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no gradients as factors";
  const testing::FactoredGradientsAre factors("always");
  class SeesFactors final : public internal::OperatorListener {
   public:
    void hear(internal::OperatorCall& call) override {
      call.go_on();
      if (call.name() == "aten::mm" && internal::lazy_tensor(call.outputs()[0].toTensor())) ++seen;
    }
    int seen = 0;
  };
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 1});
  const Variable w = strategy.make_variable(numbers({64, 400}, 1));
  const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, torch::optim::AdamWOptions(1e-2));
  SeesFactors listener;
  bool has_memory = true;
  strategy.run([&](ReplicaContext& ctx) {
    const ListeningScope scope(listener);
    ctx.scale_loss(F::linear(numbers({8, 400}, 0), w.value(ctx)).square().mean(), 1, 1).backward();
    has_memory = internal::lazy_tensor(w.value(ctx).grad()) == nullptr;
    optimizer.step(ctx);
  });
  EXPECT_EQ(listener.seen, 1);
  EXPECT_FALSE(has_memory) << "a listener that looks at no numbers leaves the gradient as it is";
}

TEST(StepListener, HearsEvaluation) {
  const Result result = run({.evaluates = true});
  EXPECT_EQ(count(result.heard[0][0], "aten::mm"), 2U);
  expect_same_bits(result, run({.listens = false, .evaluates = true}));
}

TEST(StepListener, OfOneReplicaHearsNoOther) {
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 2});
  RecordingListener listener;
  strategy.run([&](ReplicaContext& ctx) {
    std::optional<ListeningScope> scope;
    if (ctx.replica_id() == ReplicaId(0)) scope.emplace(listener);
    const Tensor x = torch::ones({2});
    if (ctx.replica_id() == ReplicaId(0)) x.exp();
    ctx.all_reduce(Reduction::kSum, x);
    if (ctx.replica_id() == ReplicaId(1)) x.sin();
  });
  EXPECT_EQ(listener.count("aten::exp"), 1U);
  EXPECT_EQ(listener.count("aten::sin"), 0U);
}

TEST(StepListener, ThatThrowsFailsTheStepAndTheNextOneIsHeard) {
  class Throws final : public internal::OperatorListener {
   public:
    void hear(internal::OperatorCall& call) override {
      if (call.name() == "aten::exp") throw std::runtime_error("no exp");
    }
  };
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  Throws throws;
  const internal::ThreadModes before = internal::thread_modes();
  testing::error_from<ReplicaError>([&] {
    strategy.run([&](ReplicaContext&) {
      const ListeningScope scope(throws);
      torch::ones({2}, torch::requires_grad()).exp().sum().backward();
    });
  });
  EXPECT_EQ(internal::thread_modes(), before);
  RecordingListener listener;
  strategy.run([&](ReplicaContext& ctx) {
    if (ctx.replica_id() != ReplicaId(0)) return;
    const ListeningScope scope(listener);
    torch::ones({2}).exp();
  });
  EXPECT_EQ(listener.count("aten::exp"), 1U);
}

TEST(StepListener, WhereNobodyListensNoCallComesBelowAutogradToUs) {
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 2});
  const auto is_heard = [] {
    const auto keys = c10::impl::tls_local_dispatch_key_set();
    return keys.included_.has(internal::kBelowAutograd) || torch::ones({2}).key_set().has(internal::kBelowAutograd);
  };
  strategy.run([&](ReplicaContext&) {
    EXPECT_FALSE(is_heard());
    EXPECT_TRUE(internal::is_intercepted());
    RecordingListener listener;
    {
      const ListeningScope scope(listener);
      EXPECT_TRUE(c10::impl::tls_is_dispatch_key_included(internal::kBelowAutograd));
    }
    EXPECT_FALSE(is_heard());
  });
  EXPECT_FALSE(internal::is_intercepted());
}

TEST(ListenersAboveAutograd, AreOneForEachOperator) {
  OneDeviceStrategy strategy;  // whose random operators have theirs
  RecordingListener listener;
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::bernoulli_", "float");
  testing::expect_error<InternalError>([&] { internal::listen_above_autograd(op, listener); }, "LS-INTERNAL",
                                       {"bernoulli_.float"});
}

/// What happens in a process where another library has registered a fallback under `key`.
[[noreturn]] void make_strategy_beside(c10::DispatchKey key) {
  torch::Library other(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  other.fallback(torch::CppFunction::makeFallthrough());
  for (int time = 0; time < 2; ++time) {
    try {
      OneDeviceStrategy();
      std::_Exit(1);
    } catch (const UsageError& error) {
      if (error.code() != "LS-DISPATCH-KEY") std::_Exit(2);
    }
  }
  std::_Exit(0);
}

TEST(DispatchKeysDeathTest, OfAnotherLibraryAreRefusedByName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(make_strategy_beside(internal::kAboveAutograd), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(make_strategy_beside(internal::kBelowAutograd), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep
