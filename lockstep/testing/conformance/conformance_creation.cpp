// The conformance checks of creation: variables and modules are made once, outside of steps and inside, with the same
// values on all replicas.
#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <atomic>
#include <map>
#include <source_location>
#include <vector>

#include "lockstep/strategy/kinds/one_device.h"
#include "lockstep/testing/conformance/conformance_checks.h"

namespace lockstep::internal::inline testing {

namespace {

using enum VariableSynchronization;
using enum VariableAggregation;

at::Tensor random_values() { return at::randn({5}); }

/// The values that random_values() gives on one device under the same seed.
at::Tensor on_one_device(const char* name) {
  OneDeviceStrategy one({.seed = Shape::kSeed});
  return one.make_variable(random_values, {.name = name}).read();
}

std::vector<std::string> names_of(const Strategy& strategy) {
  std::vector<std::string> names;
  for (const Variable& variable : strategy.variables()) names.push_back(variable.name());
  return names;
}

void initial_values(Strategy& strategy) {
  int calls = 0;
  const auto random = [&] {
    ++calls;
    return random_values();
  };
  const Variable mirrored = strategy.make_variable(random, {.name = "a"});
  const Variable own = strategy.make_variable(random, {.name = "b", .synchronization = kOnRead});
  expect_equal("how often two variables called their initial()", calls, 2);
  for (const auto& variable : {mirrored, own}) {
    const at::Tensor expected = on_one_device(variable.name().c_str());
    for (const at::Tensor& component : variable.components()) {
      expect_bits("a component of a new variable, which has one device's initial value,", component, expected);
    }
  }
  const Variable counter = strategy.make_variable(at::zeros({}, at::kLong), {.name = "c"});
  expect(mirrored.trainable() && !counter.trainable(), "variables of floating-point numbers alone are trainable");
  expect_equal("variables()", names_of(strategy), std::vector<std::string>{"a", "b", "c"});
}

void made_in_a_step(Strategy& strategy) {
  std::atomic<int> calls{0};
  const auto step = [&](ReplicaContext& ctx) {
    const auto random = [&] {
      ++calls;
      return random_values();
    };
    const Variable sum = ctx.make_variable("sum", random, {.aggregation = kSum});
    const Variable count = ctx.make_variable(
        "count", [] { return at::zeros({}, at::kLong); },
        VariableOptions{.synchronization = kOnRead, .aggregation = kSum});
    sum.assign_add(ctx, at::ones({5}));
    count.assign_add(ctx, at::ones({}, at::kLong));
    return sum;
  };
  const auto first = strategy.run(step);
  const auto second = strategy.run(step);
  expect_equal("how often initial() was called in two steps", calls.load(), 1);
  expect_equal("variables() after two steps", names_of(strategy), std::vector<std::string>{"sum", "count"});
  for (const auto& variables : {first, second}) {
    for (const Variable& variable : variables) {
      expect(variable.shared_state() == first.begin()->shared_state(),
             "a step made a second variable of the same name");
    }
  }
  const int64_t n = strategy.num_replicas();
  expect_tensor("what two steps that add 1 on each replica left", first.begin()->read(), on_one_device("sum") + n + n);
  expect_tensor("what two steps count", strategy.variables()[1].read(), at::full({}, 2 * n, at::kLong));
}

void taken_name(Strategy& strategy) {
  const auto here = std::source_location::current();
  const auto there = std::source_location::current();
  const std::string first = fmt::format(":{}", here.line());
  const std::string second = fmt::format(":{}", there.line());
  const Variable variable = strategy.make_variable(at::ones({1}), {.name = "v"}, here);
  expect_usage_error("a second variable of one name",
                     [&] { strategy.make_variable(at::ones({1}), {.name = "v"}, there); }, {"'v'", first, second});
  expect_usage_error_in_step(strategy, "a variable made in a step, of a name that was made outside,",
                             [](ReplicaContext& ctx) { ctx.make_variable("v", [] { return at::ones({1}); }); },
                             {"'v'", first});
  expect_equal("variables()", names_of(strategy), std::vector<std::string>{"v"});
}

void refused_kinds(Strategy& strategy) {
  const auto refused = [&](at::ScalarType type, VariableOptions options, const char* what) {
    expect_usage_error(what, [&] { strategy.make_variable(at::ones({1}, type), options); }, {"choose "});
    options.name = "";
    expect_usage_error_in_step(strategy, fmt::format("{}, made in a step,", what),
                               [&](ReplicaContext& ctx) {
                                 ctx.make_variable(
                                     "v", [&] { return at::ones({1}, type); }, options);
                               },
                               {"'v'", "choose "});
  };
  for (const VariableSynchronization synchronization : {kOnWrite, kOnRead}) {
    refused(at::kLong, {.synchronization = synchronization, .aggregation = kMean}, "a mean of integers");
    refused(at::kBool, {.synchronization = synchronization, .aggregation = kSum}, "a sum of bool");
  }
  expect(names_of(strategy).empty(), "variables that were refused are there");
}

void failed_creation(Strategy& strategy) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const auto fail = []() -> at::Tensor { throw Mine("mine"); };
  const auto outside = thrown_by([&] { strategy.make_variable(fail, {.name = "v"}); });
  expect_error<Mine>("an initial() that throws", "its own exception", outside, {"mine"});
  const auto inside = thrown_by([&] { strategy.run([&](ReplicaContext& ctx) { ctx.make_variable("v", fail); }); });
  expect_error<Mine>("an initial() that throws in a step", "its own exception", nested_in("it", inside), {"mine"});
  const auto module = thrown_by([&] { strategy.make_module([]() -> torch::nn::Linear { throw Mine("mine"); }); });
  expect_error<Mine>("a module's factory that throws", "its own exception", module, {"mine"});
  expect(names_of(strategy).empty(), "what failed to be made is there");
  const Variable again = strategy.make_variable(at::ones({1}), {.name = "v"});
}

// A module's parameters may be mirrored or trained locally. In both cases they begin with one device's values.
void modules_begin_alike(Strategy& strategy) {
  const auto factory = [] { return torch::nn::BatchNorm1d(3); };
  const auto linear = [] { return torch::nn::Linear(4, 3); };
  const auto model = strategy.make_module(linear);
  const auto norm = strategy.make_module(factory, {.name = "norm"});
  OneDeviceStrategy one({.seed = Shape::kSeed});
  const std::map<std::string, at::Tensor> expected = one.make_module(linear).state();
  for (const auto& [name, value] : model.state()) expect_bits("the initial " + name, value, expected.at(name));
  const auto seen = strategy.run([&](ReplicaContext& ctx) {
    expect(model(ctx)->weight.requires_grad(), "a module's weight takes no gradient in a step");
    return model(ctx)->weight.detach().clone();
  });
  for (const at::Tensor& weight : seen) expect_bits("a replica's initial weight", weight, expected.at("weight"));

  const auto modes = [&](ReplicaContext& ctx) { return norm(ctx)->is_training(); };
  for (const bool training : strategy.evaluate(modes)) expect(!training, "an evaluation has modules in training mode");
  for (const bool training : strategy.run(modes)) expect(training, "a step has modules in evaluation mode");

  auto changed = model.state();
  for (auto& [name, value] : changed) value = value + 1;
  model.load(changed);
  for (const auto& [name, value] : model.state()) expect_bits(name + " after load()", value, changed.at(name));
  const auto loaded = strategy.run([&](ReplicaContext& ctx) { return model(ctx)->weight.detach().clone(); });
  for (const at::Tensor& weight : loaded) expect_bits("a replica's weight after load()", weight, changed.at("weight"));
}

constexpr const char* kPlacement =
    "look at the strategy's Placement: it is a function of its arguments, and each replica stands in exactly one copy";

constexpr std::array<StrategyCheck, 6> kCreationChecks{{
    {"VariablesBeginAsOneDevices", initial_values, kPlacement},
    {"AVariableIsMadeOnceInAStep", made_in_a_step, kPlacement},
    {"ATakenNameIsRefusedWithBothPlaces", taken_name, kPlacement},
    {"AMeanOfIntegersAndASumOfBoolAreRefused", refused_kinds, kPlacement},
    {"AFailedCreationLeavesNothing", failed_creation, kPlacement},
    {"ModulesBeginAsOneDevices", modules_begin_alike, kPlacement},
}};

}  // namespace

std::span<const StrategyCheck> creation_checks() { return kCreationChecks; }

}  // namespace lockstep::internal::testing
