// Modules of all replicas bound to variables.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

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
  const auto text = message_from<UsageError>([&] { model.load(bad); });
  EXPECT_NE(text.find("missing 'conv.bias'"), std::string::npos) << text;
  EXPECT_NE(text.find("unexpected 'conv.extra'"), std::string::npos) << text;
  EXPECT_NE(text.find("'out.weight' has shape [2, 2] instead of [7, 6]"), std::string::npos) << text;
  for (const auto& [name, value] : model.state()) EXPECT_TRUE(torch::equal(value, state.at(name))) << name;
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
    EXPECT_NE(message_from<UsageError>([&] { make("mlp"); }).find("second module named 'model'"), std::string::npos);
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
  optimizer.learning_rate(0.5);
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

class Factories : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(1), .replicas = 3}};
  int calls_ = 0;
};

TEST_F(Factories, MustNotReturnTheSameModuleTwice) {
  const auto one = make_program("mlp");
  const auto text = message_from<UsageError>([&] { strategy_.make_module([&] { return one; }); });
  EXPECT_NE(text.find("replicas 0 and 1 share a module"), std::string::npos) << text;
}

TEST_F(Factories, MustNotShareATensor) {
  const Tensor shared = torch::ones({2});
  const auto text = message_from<UsageError>([&] {
    strategy_.make_module([&] {
      auto module = std::make_shared<torch::nn::Module>();
      module->register_parameter("shared", shared);
      return module;
    });
  });
  EXPECT_NE(text.find("share the tensor shared"), std::string::npos) << text;
}

TEST_F(Factories, MustMakeTheSameNamesShapesAndDtypes) {
  const auto text = message_from<UsageError>(
      [&] { strategy_.make_module([&] { return torch::nn::Linear(2, ++calls_ == 3 ? 5 : 4); }); });
  EXPECT_NE(text.find("parameter weight Float [4, 2]"), std::string::npos) << text;
  EXPECT_NE(text.find("replica 2 has parameter weight Float [5, 2]"), std::string::npos) << text;
  message_from<UsageError>(
      [&] { strategy_.make_module([&] { return make_program(++calls_ % 2 == 0 ? "mlp" : "cnn"); }, {.name = "b"}); });
  message_from<UsageError>([&] {
    strategy_.make_module(
        [&] {
          torch::nn::Linear linear(2, 2);
          if (++calls_ % 2 == 0) linear->to(torch::kDouble);
          return linear;
        },
        {.name = "c"});
  });
}

TEST_F(Factories, MustMakeTheSameInitialValues) {
  const auto text = message_from<DivergenceError>([&] {
    strategy_.make_module([&] {
      torch::nn::Linear linear(2, 2);
      const torch::NoGradGuard no_grad;
      linear->bias.fill_(++calls_);
      return linear;
    });
  });
  EXPECT_NE(text.find("'model.bias' has other initial values on replica 1 than on replica 0"), std::string::npos)
      << text;
}

TEST_F(Factories, MustReturnSomething) {
  message_from<UsageError>([&] { strategy_.make_module([] { return std::shared_ptr<Program>(); }); });
  message_from<UsageError>([&] { strategy_.make_module([] { return torch::nn::Linear(nullptr); }, {.name = "b"}); });
}

TEST_F(Factories, MayReturnHoldersSharedPointersAndSequentials) {
  const auto linear = strategy_.make_module([] { return torch::nn::Linear(2, 3); }, {.name = "a"});
  const auto sequence = strategy_.make_module(
      [] { return torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::ReLU()); }, {.name = "b"});
  const auto pointer =
      strategy_.make_module([] { return std::make_shared<torch::nn::LinearImpl>(2, 3); }, {.name = "c"});
  strategy_.run([&](ReplicaContext& ctx) {
    EXPECT_EQ(linear(ctx)->forward(torch::ones({1, 2})).size(1), 3);
    EXPECT_EQ(sequence(ctx)->forward(torch::ones({1, 2})).size(1), 3);
    EXPECT_EQ(pointer(ctx)->forward(torch::ones({1, 2})).size(1), 3);
  });
}

TEST_F(Factories, FrozenParametersAreVariablesThatAreNotTrainable) {
  const auto model = strategy_.make_module([] {
    torch::nn::Linear linear(2, 2);
    linear->weight.set_requires_grad(false);
    return linear;
  });
  EXPECT_FALSE(model.variables()[0].trainable());
  EXPECT_TRUE(model.variables()[1].trainable());
}

}  // namespace
}  // namespace lockstep
