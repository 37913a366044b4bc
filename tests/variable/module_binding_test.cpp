// Modules of all replicas bound to variables.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::has_value;
using testing::lanes;
using testing::make_program;
using testing::message_from;
using testing::Program;
using torch::Tensor;

class ModulesOf : public ::testing::TestWithParam<std::pair<int64_t, Copies>> {
 protected:
  MirroredStrategy strategy_{
      {.devices = lanes(1), .replicas = GetParam().first, .copies = GetParam().second, .seed = 5}};
  Replicated<std::shared_ptr<Program>> make(const std::string& program, ModuleOptions options = {}) {
    return strategy_.make_module([program] { return make_program(program); }, std::move(options));
  }
};

TEST_P(ModulesOf, ParametersAreMirroredAndBuffersSyncOnRead) {
  const auto model = make("cnn");
  std::map<std::string, Variable> by_name;
  for (const Variable& variable : model.variables()) by_name.emplace(variable.name(), variable);
  EXPECT_EQ(by_name.at("model.conv.weight").synchronization(), VariableSynchronization::kOnWrite);
  EXPECT_TRUE(by_name.at("model.conv.weight").trainable());
  EXPECT_EQ(by_name.at("model.norm.running_mean").synchronization(), VariableSynchronization::kOnRead);
  EXPECT_EQ(by_name.at("model.norm.running_mean").aggregation(), VariableAggregation::kMean);
  EXPECT_EQ(by_name.at("model.norm.num_batches_tracked").aggregation(), VariableAggregation::kOnlyFirstReplica);
  EXPECT_FALSE(by_name.at("model.norm.running_mean").trainable());
}

TEST_P(ModulesOf, OneMemoryHoldsTheWeightsUnlessCopiesWereAskedFor) {
  const auto model = make("mlp");
  const auto addresses = strategy_.run([&](ReplicaContext& ctx) { return model(ctx)->parameters()[0].data_ptr(); });
  for (int64_t r = 1; r < GetParam().first; ++r) {
    EXPECT_EQ(addresses[r] == addresses[0], GetParam().second == Copies::kPerMemory) << "replica " << r;
  }
}

TEST_P(ModulesOf, GradientsAreEachReplicasOwn) {
  const auto model = make("double");
  const auto gradients = strategy_.run([&](ReplicaContext& ctx) {
    Tensor weight = model(ctx)->parameters()[0];
    (weight * static_cast<double>(ctx.replica_id() + 1)).sum().backward();
    return weight.grad();
  });
  for (int64_t r = 0; r < GetParam().first; ++r)
    EXPECT_EQ(gradients[r][0][0].item<double>(), static_cast<double>(r + 1));
}

TEST_P(ModulesOf, InitialValuesAreAFunctionOfSeedAndModuleName) {
  const auto digest = [&](uint64_t seed, const std::string& name) {
    MirroredStrategy strategy(
        {.devices = lanes(1), .replicas = GetParam().first, .copies = GetParam().second, .seed = seed});
    return strategy.make_module([] { return make_program("mlp"); }, {.name = name}).state();
  };
  const auto a = digest(1, "a");
  const auto again = digest(1, "a");
  const auto other_name = digest(1, "b");
  const auto other_seed = digest(2, "a");
  for (const auto& [name, value] : a) {
    EXPECT_TRUE(torch::equal(value, again.at(name)));
    EXPECT_FALSE(torch::equal(value, other_name.at(name)));
    EXPECT_FALSE(torch::equal(value, other_seed.at(name)));
  }
}

TEST_P(ModulesOf, ATensorWithTwoNamesIsOneVariable) {
  const auto model = make("embedding");
  EXPECT_EQ(model.state().count("tokens.weight"), 1u);
  EXPECT_EQ(model.state().count("tied"), 1u);
  int count = 0;
  for (const Variable& variable : model.variables()) count += variable.sizes() == std::vector<int64_t>{7, 16} ? 1 : 0;
  EXPECT_EQ(count, 1);
}

TEST_P(ModulesOf, LoadSetsEveryReplicaAndStateGivesItBack) {
  const auto model = make("cnn");
  torch::manual_seed(1);
  const auto source = make_program("cnn");
  std::map<std::string, Tensor> named;
  for (const auto& item : source->named_parameters()) named[item.key()] = item.value();
  for (const auto& item : source->named_buffers()) named[item.key()] = item.value();
  named["norm.running_mean"] = torch::randn({6});
  model.load(named);
  for (const auto& [name, value] : model.state()) EXPECT_TRUE(torch::equal(value, named.at(name))) << name;
  const auto seen = strategy_.run(
      [&](ReplicaContext& ctx) { return model(ctx)->named_parameters()["conv.weight"].detach().clone(); });
  for (const Tensor& value : seen) EXPECT_TRUE(torch::equal(value, named.at("conv.weight")));
  std::map<std::string, Tensor> prefixed;
  for (const auto& [name, value] : named) prefixed["model." + name] = value;
  model.load(prefixed);
}

TEST_P(ModulesOf, LoadNamesEverythingThatDoesNotFitAndChangesNothing) {
  const auto model = make("cnn");
  auto state = model.state();
  auto bad = state;
  bad.erase("conv.bias");
  bad["conv.extra"] = torch::ones({1});
  bad["out.weight"] = torch::ones({2, 2});
  bad["conv.weight"] = torch::full_like(bad["conv.weight"], 9.0);
  expect_error<UsageError>(
      [&] { model.load(bad); }, "LS-STATE-MISFIT",
      {"module 'model'", "missing 'conv.bias'", "unexpected 'conv.extra'", "'out.weight'", "shape [2, 2]", "[7, 6]"});
  for (const auto& [name, value] : model.state()) EXPECT_TRUE(torch::equal(value, state.at(name))) << name;
}

TEST_P(ModulesOf, LoadWithWhatTheVariableCannotBeChangesNothing) {
  const auto model = make("cnn");
  const auto state = model.state();
  for (const auto& [bad, what] : std::vector<std::pair<Tensor, std::string>>{
           {torch::ones({7, 6}).to_sparse(), "sparse"}, {Tensor(), "undefined"}, {torch::ones({6, 7}), "[6, 7]"}}) {
    auto given = state;
    for (auto& [name, value] : given) value = value + 1;
    given["out.weight"] = bad;
    expect_error<UsageError>([&] { model.load(given); }, "LS-STATE-MISFIT", {"module 'model'", "'out.weight'", what});
    EXPECT_FALSE(has_value(message_from<UsageError>([&] { model.load(given); }), "missing 'out.weight'")) << what;
    for (const auto& [name, value] : model.state()) EXPECT_TRUE(torch::equal(value, state.at(name))) << name;
  }
  auto given = state;
  given["norm.num_batches_tracked"] = torch::full({}, 2.5);
  expect_error<UsageError>([&] { model.load(given); }, "LS-STATE-MISFIT",
                           {"'norm.num_batches_tracked'", "Float", "Long"});
  given["norm.num_batches_tracked"] = torch::full({}, 2.0);
  model.load(given);
  EXPECT_EQ(model.state().at("norm.num_batches_tracked").item<int64_t>(), 2);
}

TEST_P(ModulesOf, LoadTellsAPrefixFromAPartOfTheSameName) {
  struct Part : torch::nn::Module {
    explicit Part(bool has_part) {
      register_parameter("weight", torch::ones({1}));
      if (has_part) register_module("model", std::make_shared<Part>(false));
    }
  };
  const auto model = strategy_.make_module([] { return std::make_shared<Part>(true); });
  const std::map<std::string, Tensor> plain{{"weight", torch::full({1}, 2.0)}, {"model.weight", torch::full({1}, 3.0)}};
  const std::map<std::string, Tensor> prefixed{{"model.weight", torch::full({1}, 4.0)},
                                               {"model.model.weight", torch::full({1}, 5.0)}};
  model.load(plain);
  EXPECT_EQ(model.state().at("weight").item<double>(), 2);
  EXPECT_EQ(model.state().at("model.weight").item<double>(), 3);
  model.load(prefixed);
  EXPECT_EQ(model.state().at("weight").item<double>(), 4);
  EXPECT_EQ(model.state().at("model.weight").item<double>(), 5);
}

TEST_P(ModulesOf, LoadRefusesTwoNamesOfOneTensorWithDifferentValues) {
  const auto model = make("embedding");
  auto given = model.state();
  given["tied"] = given.at("tied") + 1;
  expect_error<UsageError>([&] { model.load(given); }, "LS-STATE-MISFIT", {"module 'model'", "'tokens.weight'"});
  given["tokens.weight"] = given.at("tied");
  model.load(given);
  EXPECT_TRUE(torch::equal(model.state().at("tokens.weight"), given.at("tied")));
}

TEST_P(ModulesOf, StateIsACopyAndCanBeSavedAndLoadedByTorch) {
  const auto model = make("cnn");
  auto state = model.state();
  std::vector<Tensor> tensors;
  for (auto& [name, value] : state) {
    EXPECT_FALSE(value.requires_grad()) << name;
    tensors.push_back(value.clone());
    value.fill_(9);
  }
  std::size_t i = 0;
  for (const auto& [name, value] : model.state()) EXPECT_TRUE(torch::equal(value, tensors[i++])) << name;
  std::stringstream stream;
  torch::save(tensors, stream);
  std::vector<Tensor> loaded;
  torch::load(loaded, stream);
  i = 0;
  for (auto& [name, value] : state) value = loaded[i++];
  model.load(state);
}

TEST_P(ModulesOf, BuffersAreWrittenByEachReplicaAndReadTogether) {
  const auto model = make("cnn");
  strategy_.run([&](ReplicaContext& ctx) {
    for (auto& item : model(ctx)->named_buffers()) {
      if (item.key() == "norm.running_mean") item.value().fill_(static_cast<double>(ctx.replica_id()));
      if (item.key() == "norm.num_batches_tracked") item.value().fill_(10 + ctx.replica_id());
      if (item.key() == "norm.running_var") item.value().fill_(0.1f);
    }
  });
  const auto state = model.state();
  const double mean = static_cast<double>(GetParam().first - 1) / 2;
  EXPECT_TRUE(torch::equal(state.at("norm.running_mean"), torch::full({6}, mean)));
  EXPECT_TRUE(torch::equal(state.at("norm.running_var"), torch::full({6}, 0.1f))) << "equal bits give those bits";
  EXPECT_EQ(state.at("norm.num_batches_tracked").item<int64_t>(), 10) << "the first replica's";
  for (const auto& item : model.export_module()->named_buffers()) {
    EXPECT_TRUE(torch::equal(item.value(), state.at(item.key()))) << item.key();
  }
}

TEST_P(ModulesOf, ExportModuleGivesTheTrainedValuesAndTrainsOnItsOwn) {
  const auto model = make("embedding");
  const auto optimizer = testing::make_optimizer(strategy_, model, "adamw");
  const auto step = [&](ReplicaContext& ctx) {
    model(ctx)->loss(torch::ones({2, 24}), torch::zeros({2}, torch::kLong)).backward();
    optimizer.step(ctx);
  };
  strategy_.run(step);
  const auto exported = model.export_module();
  const auto state = model.state();
  std::size_t parameters = 0;
  for (const auto& item : exported->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), state.at(item.key()))) << item.key();
    EXPECT_TRUE(item.value().requires_grad());
    ++parameters;
  }
  EXPECT_EQ(parameters, state.size());
  torch::optim::SGD own(exported->parameters(), 0.1);
  exported->loss(torch::ones({2, 24}), torch::zeros({2}, torch::kLong)).backward();
  own.step();
  strategy_.run(step);  // is nobody's foreign write
}

TEST_P(ModulesOf, ExportModuleRefusesAFactoryThatNowMakesAnotherModule) {
  int64_t width = 2;
  bool bias = true;
  const auto model =
      strategy_.make_module([&] { return torch::nn::Linear(torch::nn::LinearOptions(2, width).bias(bias)); });
  width = 3;
  expect_error<UsageError>([&] { model.export_module(); }, "LS-FACTORY",
                           {"module 'model'", "weight Float [3, 2]", "weight Float [2, 2]"});
  width = 2;
  bias = false;
  expect_error<UsageError>([&] { model.export_module(); }, "LS-FACTORY",
                           {"module 'model'", "nothing", "bias Float [2]"});
  bias = true;
  model.export_module();
}

TEST_P(ModulesOf, AModuleMadeInAMergeFunctionOfAnEvaluationKeepsItsMode) {
  const auto first = make("mlp");
  std::optional<Replicated<torch::nn::Linear>> made;
  strategy_.evaluate([&](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy& strategy) {
      made = strategy.make_module([] { return torch::nn::Linear(2, 2); }, {.name = "late"});
    });
    EXPECT_TRUE((*made)(ctx)->is_training());
    EXPECT_FALSE(first(ctx)->is_training());
  });
  strategy_.run([&](ReplicaContext& ctx) { EXPECT_TRUE(first(ctx)->is_training()); });
}

TEST_P(ModulesOf, ExportModuleIsIndependent) {
  const auto model = make("cnn");
  const auto exported = model.export_module();
  const auto state = model.state();
  for (const auto& item : exported->named_parameters()) EXPECT_TRUE(torch::equal(item.value(), state.at(item.key())));
  {
    const torch::NoGradGuard no_grad;
    exported->parameters()[0].add_(1);
  }
  for (const auto& [name, value] : model.state()) EXPECT_TRUE(torch::equal(value, state.at(name))) << name;
  strategy_.run([&](ReplicaContext& ctx) { model(ctx); });  // and is nobody's foreign write
}

TEST_P(ModulesOf, NamesAreUniqueAmongTheLiving) {
  {
    const auto model = make("mlp");
    expect_error<UsageError>([&] { make("mlp"); }, "LS-NAME-TAKEN", {"module", "'model'"});
    make("mlp", {.name = "other"});
  }
  make("mlp");  // the first one is gone
}

TEST_P(ModulesOf, HandlesOutliveTheirStrategyInAnyOrder) {
  auto strategy =
      std::make_unique<MirroredStrategy>(MirroredOptions{.devices = lanes(1), .replicas = GetParam().first});
  auto model =
      std::make_unique<Replicated<std::shared_ptr<Program>>>(strategy->make_module([] { return make_program("mlp"); }));
  auto optimizer = testing::make_optimizer(*strategy, *model, "adamw");
  const Variable variable = model->variables()[0];
  strategy.reset();
  model.reset();
  EXPECT_EQ(variable.read().sizes(), variable.sizes());
  variable.assign(torch::zeros(variable.sizes()));
  optimizer.set_learning_rate(0.5);
  EXPECT_EQ(optimizer.learning_rate(), 0.5);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ModulesOf,
                         ::testing::Values(std::pair{int64_t{1}, Copies::kPerMemory},
                                           std::pair{int64_t{3}, Copies::kPerMemory},
                                           std::pair{int64_t{3}, Copies::kPerReplica}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.first) +
                                  (shape.param.second == Copies::kPerMemory ? "PerMemory" : "PerReplica");
                         });

}  // namespace
}  // namespace lockstep
