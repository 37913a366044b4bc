// Replicated::load: a part of the names, names with prefixes, and tensors with several names.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using Tensors = std::map<std::string, at::Tensor>;

torch::nn::Sequential two_layers() { return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2)); }

/// A module whose output layer has the weight of its input layer.
std::shared_ptr<torch::nn::Module> tied() {
  auto net = std::make_shared<torch::nn::Module>("Tied");
  auto in = net->register_module("in", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
  auto out = std::make_shared<torch::nn::Module>("Out");
  out->register_parameter("weight", in->weight);
  net->register_module("out", out);
  return net;
}

Tensors ones_like(const Tensors& state) {
  Tensors values;
  for (const auto& [name, value] : state) values[name] = torch::ones_like(value);
  return values;
}

Tensors with_prefix(const Tensors& values, const std::string& prefix) {
  Tensors named;
  for (const auto& [name, value] : values) named[prefix + name] = value;
  return named;
}

void expect_ones(const Tensors& state) {
  for (const auto& [name, value] : state) EXPECT_TRUE(value.equal(torch::ones_like(value))) << name;
}

class Load : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{{.devices = {"cpu:0", "cpu:1"}, .replicas = 2, .seed = 1}};
};

TEST_F(Load, OfAPartLeavesTheRestAndNamesIt) {
  const auto model = strategy_.make_module(two_layers);
  const Tensors before = model.state();
  const Tensors part{{"0.weight", torch::ones({4, 3})}, {"head", torch::ones({2})}};
  expect_error<UsageError>([&] { model.load(part); }, "LS-STATE-MISFIT", {"unexpected 'head'", "missing '0.bias'"});
  expect_error<UsageError>([&] { model.load(part, {.allow_missing = true}); }, "LS-STATE-MISFIT", {"'head'"});
  expect_error<UsageError>([&] { model.load(part, {.allow_unexpected = true}); }, "LS-STATE-MISFIT", {"'1.weight'"});
  EXPECT_TRUE(model.state().at("0.weight").equal(before.at("0.weight"))) << "nothing was loaded so far";
  const LoadInfo info = model.load(part, {.allow_missing = true, .allow_unexpected = true});
  EXPECT_EQ(info.missing, (std::vector<std::string>{"0.bias", "1.weight", "1.bias"}));
  EXPECT_EQ(info.unexpected, std::vector<std::string>{"head"});
  EXPECT_TRUE(model.state().at("0.weight").equal(torch::ones({4, 3})));
  EXPECT_TRUE(model.state().at("1.weight").equal(before.at("1.weight")));
  // A tensor that does not fit is no missing one.
  expect_error<UsageError>(
      [&] {
        model.load({{"0.weight", torch::ones({2})}}, {.allow_missing = true, .allow_unexpected = true});
      },
      "LS-STATE-MISFIT", {"'0.weight'"});
}

TEST_F(Load, TakesThePrefixesOfPyTorchOffAllNames) {
  const auto model = strategy_.make_module(two_layers);
  const Tensors ones = ones_like(model.state());
  const Tensors zeros = [&] {
    Tensors values;
    for (const auto& [name, value] : ones) values[name] = torch::zeros_like(value);
    return values;
  }();
  for (const char* prefix :
       {"model.", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.model."}) {
    model.load(zeros);
    model.load(with_prefix(ones, prefix));
    expect_ones(model.state());
  }
  Tensors mixed = ones;  // a submodule was compiled
  mixed.erase("0.weight");
  mixed["0._orig_mod.weight"] = torch::ones({4, 3});
  model.load(zeros);
  model.load(mixed);
  expect_ones(model.state());
}

TEST_F(Load, NamesAPrefixThatItDoesNotKnow) {
  const auto model = strategy_.make_module(two_layers);
  const Tensors ones = ones_like(model.state());
  expect_error<UsageError>([&] { model.load(with_prefix(ones, "net.backbone.")); }, "LS-STATE-MISFIT",
                           {"'net.backbone.' stands before 4 of the names"});
  Tensors mixed = ones;
  mixed.erase("0.weight");
  mixed["module.0.weight"] = torch::ones({4, 3});
  expect_error<UsageError>([&] { model.load(mixed); }, "LS-STATE-MISFIT", {"'module.' stands before 1 of the names"});
}

TEST_F(Load, KnowsASubmoduleThatIsCalledModule) {
  const auto model = strategy_.make_module([] {
    auto net = std::make_shared<torch::nn::Module>("Net");
    net->register_module("module", torch::nn::Linear(2, 2));
    return net;
  });
  const Tensors ones = ones_like(model.state());
  model.load(ones);
  expect_ones(model.state());
  model.load(with_prefix(ones, "module."));
}

TEST_F(Load, OfATensorWithTwoNamesTakesEither) {
  const auto model = strategy_.make_module(tied);
  for (const Tensors& given :
       {Tensors{{"in.weight", torch::ones({3, 3})}}, Tensors{{"out.weight", torch::ones({3, 3})}},
        Tensors{{"in.weight", torch::ones({3, 3})}, {"out.weight", torch::ones({3, 3})}},
        Tensors{{"in.weight", torch::ones({3, 3})}, {"out.weight", torch::ones({3, 3}, torch::kDouble)}}}) {
    model.load({{"in.weight", torch::zeros({3, 3})}});
    EXPECT_TRUE(model.load(given).missing.empty());
    expect_ones(model.state());
  }
  expect_error<UsageError>(
      [&] {
        model.load({{"in.weight", torch::ones({3, 3})}, {"out.weight", torch::zeros({3, 3})}});
      },
      "LS-STATE-MISFIT", {"'in.weight'", "'out.weight'", "different values"});
  expect_ones(model.state());
  const LoadInfo info = model.load({}, {.allow_missing = true});
  EXPECT_EQ(info.missing, std::vector<std::string>{"in.weight"}) << "one tensor is missing once";
}

}  // namespace
}  // namespace lockstep
