// Values that a program gives on each worker by itself must be equal, and what the chief alone computes reaches all.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::run_workers;
using Body = std::function<void(Strategy&)>;

bool is_last(const Strategy& strategy) { return strategy.worker_index() == strategy.num_workers() - 1; }

/// A value that the last worker has otherwise.
torch::Tensor of_worker(const Strategy& strategy) { return torch::full({3}, is_last(strategy) ? 2.0 : 1.0); }

void expect_diverged(const Body& body, std::string_view call, std::string_view name) {
  testing::expect_error_on_all<DivergenceError>({3, 3, 1}, body, "LS-DIVERGED", {call, name, "worker 2", "worker 0"});
}

TEST(WorkersAgree, OnTheInitialValueOfAVariable) {
  expect_diverged([](Strategy& strategy) { strategy.make_variable(of_worker(strategy), {.name = "a"}); },
                  "make_variable", "'a'");
  run_workers({3, 3, 1}, [](Strategy& strategy) {
    EXPECT_THROW(strategy.make_variable(of_worker(strategy), {.name = "a"}), DivergenceError);
    const Variable a = strategy.make_variable(torch::ones({3}), {.name = "a"});  // nothing was made before
    EXPECT_TRUE(torch::equal(a.read(), torch::ones({3})));
    return 0;
  });
}

TEST(WorkersAgree, OnTheInitialValuesOfAModule) {
  expect_diverged(
      [](Strategy& strategy) {
        strategy.make_module([&] {
          torch::nn::Linear one(3, 1);
          torch::NoGradGuard no_grad;
          if (is_last(strategy)) one->bias.add_(1);
          return one;
        });
      },
      "make_module", "'model.bias'");
}

TEST(WorkersAgree, ThatNoneHasAModuleWhoseFactoryThrewOnOne) {
  run_workers({3, 3, 1}, [](Strategy& strategy) {
    const auto make = [&](bool throws) {
      return strategy.make_module([&, throws] {
        if (throws && is_last(strategy)) throw std::runtime_error("no file here");
        return torch::nn::Linear(3, 1);
      });
    };
    if (is_last(strategy)) {
      EXPECT_THROW(make(true), std::runtime_error);
    } else {
      testing::expect_error<PeerError>([&] { make(true); }, "LS-PEER-FAILED", {"worker 2", "no file here"});
    }
    EXPECT_EQ(make(false).variables().size(), 2u);
    return 0;
  });
}

TEST(WorkersAgree, OnWhatIsAssigned) {
  expect_diverged(
      [](Strategy& strategy) {
        const Variable a = strategy.make_variable(torch::zeros({3}), {.name = "a"});
        a.assign(of_worker(strategy));
      },
      "Variable::assign", "'a'");
  expect_diverged(
      [](Strategy& strategy) {
        const Variable a = strategy.make_variable(torch::zeros({3}), {.name = "a"});
        a.assign_add(strategy.per_replica([&](ReplicaId) { return of_worker(strategy); }));
      },
      "Variable::assign_add", "'a'");
}

TEST(WorkersAgree, ThatNothingIsAssignedWhereOneRefusesOrDiffers) {
  run_workers({2, 4, 1}, [](Strategy& strategy) {
    const Variable a = strategy.make_variable(torch::zeros({3}), {.name = "a"});
    EXPECT_THROW(a.assign(of_worker(strategy)), DivergenceError);
    if (is_last(strategy)) {
      EXPECT_THROW(a.assign(torch::ones({4})), UsageError);
    } else {
      EXPECT_THROW(a.assign(torch::ones({3})), PeerError);
    }
    EXPECT_TRUE(torch::equal(a.read(), torch::zeros({3})));
    a.assign(torch::ones({3}));
    EXPECT_TRUE(torch::equal(a.read(), torch::ones({3})));
    return 0;
  });
}

TEST(WorkersAgree, OnWhatAModuleLoads) {
  expect_diverged(
      [](Strategy& strategy) {
        const auto model = strategy.make_module([] { return torch::nn::Linear(3, 1); });
        auto state = model.state();
        if (is_last(strategy)) state.at("bias") = state.at("bias") + 1;
        model.load(state);
      },
      "Replicated::load", "'model.bias'");
}

TEST(WorkersAgree, OnWhatAnOptimizerLoads) {
  expect_diverged(
      [](Strategy& strategy) {
        const auto model = strategy.make_module([] { return torch::nn::Linear(3, 1); });
        const Optimizer optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(0.1));
        auto state = optimizer.state();
        if (is_last(strategy)) state.at("model.bias/exp_avg") = state.at("model.bias/exp_avg") + 1;
        optimizer.load(state);
      },
      "Optimizer::load", "'model.bias/exp_avg'");
  run_workers({2, 2, 1}, [](Strategy& strategy) {
    const auto model = strategy.make_module([] { return torch::nn::Linear(3, 1); });
    const Optimizer optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(0.1));
    auto state = optimizer.state();
    state.at("model.bias/exp_avg").fill_(1);
    auto other = state;
    if (is_last(strategy)) other.erase("model.weight/step");
    if (is_last(strategy)) {
      EXPECT_THROW(optimizer.load(other), UsageError);
    } else {
      EXPECT_THROW(optimizer.load(other), PeerError);
    }
    EXPECT_EQ(optimizer.state().at("model.bias/exp_avg").sum().item<double>(), 0);  // nothing was loaded
    optimizer.load(state);
    EXPECT_EQ(optimizer.state().at("model.bias/exp_avg").sum().item<double>(), 1);
    EXPECT_THROW(optimizer.set_learning_rate(is_last(strategy) ? -1 : 0.5), Error);
    EXPECT_EQ(optimizer.learning_rate(), 0.1);
    return 0;
  });
}

TEST(WorkersAgree, OnWhatAnUpdateLeaves) {
  expect_diverged(
      [](Strategy& strategy) {
        const Variable a = strategy.make_variable(torch::zeros({3}), {.name = "a"});
        strategy.update(a, [&](torch::Tensor& value) { value.add_(of_worker(strategy)); });
      },
      "Strategy::update", "'a'");
}

TEST(WorkersAgree, OnAnUpdateOfAMergeFunctionWhereTheirReplicasAreNotAsMany) {
  const auto values = run_workers({2, 3, 1}, [](Strategy& strategy) {
    const Variable a = strategy.make_variable(torch::zeros({1}), {.name = "a"});
    strategy.run([&](ReplicaContext& ctx) {
      ctx.merge_call([&](Strategy& inside) {
        const auto ones = inside.per_replica([](ReplicaId) { return torch::ones({1}); });
        inside.update(
            a, [&](torch::Tensor&, const torch::Tensor& one) { a.assign(one); }, ones);
      });
    });
    return a.read().item<double>();
  });
  for (const double value : values) EXPECT_EQ(value, 1.0);
}

TEST(WorkersAgree, OnTheOptionsOfAVariable) {
  testing::expect_error_on_all<UsageError>(
      {2, 2, 1},
      [](Strategy& strategy) {
        strategy.make_variable(torch::zeros({1}), {.name = "a",
                                                   .synchronization = VariableSynchronization::kOnRead,
                                                   .aggregation = is_last(strategy) ? VariableAggregation::kSum
                                                                                    : VariableAggregation::kMean});
      },
      "LS-WORKER-ORDER", {"make_variable of 'a'", "on-read mean", "on-read sum"});
}

TEST(WorkersAgree, OnComponentsOfTheirOwnWithoutComparingThem) {
  const auto sums = run_workers({2, 4, 1}, [](Strategy& strategy) {
    const Variable a = strategy.make_variable(
        torch::zeros({1}),
        {.name = "a", .synchronization = VariableSynchronization::kOnRead, .aggregation = VariableAggregation::kSum});
    a.assign(strategy.per_replica([](ReplicaId r) { return torch::full({1}, static_cast<double>(r.value())); }));
    return a.read().item<double>();
  });
  for (const double sum : sums) EXPECT_EQ(sum, 6.0);
}

TEST(WorkersAgree, InTheVerificationAfterAStep) {
  // What makes values differ here is the restored state of one worker, which no call compares.
  run_workers({2, 2, 1}, [](Strategy& strategy) {
    const Variable a = strategy.make_variable(torch::zeros({3}), {.name = "a"});
    for (const StateItem& item : strategy.state_items()) {
      if (item.name == "a" && is_last(strategy)) item.write({torch::ones({3})});
    }
    const auto run = [&] { strategy.run([](ReplicaContext&) {}); };
    for (int64_t step = 1; step < 100; ++step) run();
    testing::expect_step_error<DivergenceError>(run, "LS-DIVERGED", {"the verification", "'a'", "worker 1"});
    return 0;
  });
}

// on_chief

template <class T, class Make>
void expect_on_all(const T& expected, const Make& make) {
  for (const int64_t workers : {1, 3}) {
    const auto values = run_workers({workers, 3, 1}, [&](Strategy& strategy) {
      return strategy.on_chief([&] {
        EXPECT_EQ(strategy.worker_index(), 0);
        return make();
      });
    });
    for (const T& value : values) EXPECT_EQ(value, expected);
  }
}

TEST(WorkersAgree, OnTheChiefsValueOfManyTypes) {
  enum class Color : uint8_t { kRed, kGreen };
  expect_on_all(7, [] { return 7; });
  expect_on_all(true, [] { return true; });
  expect_on_all(-0.5, [] { return -0.5; });
  expect_on_all(Color::kGreen, [] { return Color::kGreen; });
  expect_on_all(std::string(), [] { return std::string(); });
  expect_on_all(std::string("with\0zero", 9), [] { return std::string("with\0zero", 9); });
  expect_on_all(std::vector<std::string>{"a", ""}, [] { return std::vector<std::string>{"a", ""}; });
  expect_on_all(std::vector<bool>{true, false, true}, [] { return std::vector<bool>{true, false, true}; });
  expect_on_all(std::array<double, 2>{1, 2}, [] { return std::array<double, 2>{1, 2}; });
  using Table = std::map<std::string, std::optional<std::pair<int, float>>>;
  expect_on_all(Table{{"a", std::pair(1, 2.5f)}, {"b", std::nullopt}}, [] {
    return Table{{"a", std::pair(1, 2.5f)}, {"b", std::nullopt}};
  });
  expect_on_all(std::tuple(1, std::string("x")), [] { return std::tuple(1, std::string("x")); });
}

TEST(WorkersAgree, OnTheChiefsTensorsOfAnyLayout) {
  using Tensors = std::map<std::string, torch::Tensor>;
  const auto make = [] {
    return Tensors{{"view", torch::arange(12).reshape({3, 4}).t()}, {"expanded", torch::ones({1}).expand({5})},
                   {"empty", torch::empty({0, 3}, torch::kDouble)}, {"number", torch::tensor(3.5, torch::kHalf)},
                   {"flags", torch::tensor({true, false})},         {"undefined", torch::Tensor()}};
  };
  const auto all = run_workers({3, 3, 1}, [&](Strategy& strategy) { return strategy.on_chief(make); });
  for (const Tensors& found : all) {
    for (const auto& [name, expected] : make()) {
      ASSERT_EQ(found.at(name).defined(), expected.defined()) << name;
      if (!expected.defined()) continue;
      EXPECT_EQ(found.at(name).scalar_type(), expected.scalar_type()) << name;
      EXPECT_TRUE(torch::equal(found.at(name), expected)) << name;
      EXPECT_TRUE(found.at(name).is_contiguous()) << name;  // on the chief too: strides can decide bits
    }
  }
}

TEST(WorkersAgree, OnWhatTheChiefThrows) {
  run_workers({3, 3, 1}, [](Strategy& strategy) {
    const auto call = [&] { strategy.on_chief([]() -> int { throw std::out_of_range("disk is full"); }); };
    if (strategy.is_chief()) {
      EXPECT_THROW(call(), std::out_of_range);
    } else {
      testing::expect_error<PeerError>(call, "LS-PEER-FAILED", {"worker 0", "disk is full"});
    }
    EXPECT_EQ(strategy.on_chief([] { return 3; }), 3);  // all go on
    return 0;
  });
}

TEST(WorkersAgree, ThatAChiefsValueThatCannotBeSentIsRefusedBeforeTheCall) {
  struct Handle {
    int* where;
  };
  testing::expect_error_on_all<UsageError>({2, 2, 1},
                                           [](Strategy& strategy) {
                                             strategy.on_chief([]() -> Handle {
                                               ADD_FAILURE() << "it was called";
                                               return {};
                                             });
                                           },
                                           "LS-ONE-WORKER", {"on_chief"});
  OneDeviceStrategy alone;
  int x = 0;
  EXPECT_EQ(alone.on_chief([&] { return Handle{&x}; }).where, &x);
}

TEST(WorkersAgree, ThatTheChiefAloneMakesNoCallOfAll) {
  run_workers({2, 2, 1}, [](Strategy& strategy) {
    const auto call = [&] {
      strategy.on_chief([&] { strategy.gather(strategy.per_replica([](ReplicaId) { return torch::ones({1}); })); });
    };
    if (strategy.is_chief()) {
      testing::expect_error<UsageError>(call, "LS-INSIDE-CHIEF", {"Strategy::gather"});
    } else {
      testing::expect_error<PeerError>(call, "LS-PEER-FAILED", {"worker 0"});
    }
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
