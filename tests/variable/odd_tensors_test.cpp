// Tensors that are not plain dense ones: what becomes of them as parameters, as buffers and as values.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/variable/variable_state.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using torch::Tensor;

/// A module of tensors that a test makes, under the names "a", "b", ...
struct Bag : torch::nn::Module {
  explicit Bag(const std::vector<Tensor>& parameters, const std::vector<Tensor>& buffers = {}) {
    char name = 'a';
    for (const Tensor& one : parameters) {
      register_parameter(std::string(1, name++), one, at::isFloatingType(one.scalar_type()));
    }
    for (const Tensor& one : buffers) register_buffer(std::string(1, name++), one);
  }
  Tensor at(const char* name) const {
    const auto parameters = named_parameters();
    const Tensor* const found = parameters.find(name);
    return found ? *found : *named_buffers().find(name);
  }
};

class OddTensors : public ::testing::TestWithParam<Copies> {
 protected:
  using Model = Replicated<std::shared_ptr<Bag>>;
  Model make(const std::function<std::shared_ptr<Bag>()>& factory, const std::string& name = "model") {
    return strategy_.make_module(factory, {.name = name});
  }
  /// Trains all parameters by SGD with learning rate 1 under the loss sum(p * (1 + i)), i counting parameters, and
  /// expects the values that follow.
  void expect_trains(const Model& model, const std::vector<Tensor>& initial) {
    const auto optimizer = strategy_.make_optimizer(model, torch::optim::SGDOptions(1));
    for (int step = 1; step <= 3; ++step) {
      strategy_.run([&](ReplicaContext& ctx) {
        Tensor loss = torch::zeros({}, torch::kDouble);
        int weight = 1;
        for (const Tensor& p : model(ctx)->parameters()) loss = loss + (p * weight++).sum();
        (loss / static_cast<double>(strategy_.num_replicas())).backward();
        optimizer.step(ctx);
      });
      for (std::size_t i = 0; i < initial.size(); ++i) {
        const Tensor expected = initial[i] - static_cast<double>(step) * static_cast<double>(i + 1);
        EXPECT_TRUE(torch::equal(model.variables()[i].read(), expected)) << i << model.variables()[i].read();
        strategy_.run([&](ReplicaContext& ctx) {
          EXPECT_TRUE(torch::equal(model(ctx)->parameters()[i], expected)) << "replica " << ctx.replica_id().value();
        });
      }
    }
  }
  static Tensor numbers() { return torch::arange(24, torch::kDouble).reshape({4, 6}); }

  MirroredStrategy strategy_{{.devices = lanes(2), .replicas = 4, .copies = GetParam(), .verify_every = 1}};
};

TEST_P(OddTensors, ParametersThatAreNotDenseAreTrainedAndTheirNeighboursAreNot) {
  std::vector<Tensor> wholes;
  const auto model = make([&] {
    wholes.push_back(numbers());
    return std::make_shared<Bag>(std::vector<Tensor>{wholes.back().narrow(1, 1, 3)});
  });
  expect_trains(model, {numbers().narrow(1, 1, 3).clone()});
  for (const Tensor& whole : wholes) EXPECT_TRUE(torch::equal(whole, numbers())) << "nobody's but the test's";
}

TEST_P(OddTensors, ParametersThatAreExpandedGetARowForEach) {
  const auto model = make([] {
    return std::make_shared<Bag>(std::vector<Tensor>{torch::arange(3, torch::kDouble).expand({5, 3})});
  });
  expect_trains(model, {torch::arange(3, torch::kDouble).expand({5, 3}).clone()});
}

TEST_P(OddTensors, ParametersWithOverlappingStridesAreTrainedElementByElement) {
  const auto model = make([] {
    return std::make_shared<Bag>(std::vector<Tensor>{torch::arange(8, torch::kDouble).as_strided({4, 3}, {1, 2})});
  });
  expect_trains(model, {torch::arange(8, torch::kDouble).as_strided({4, 3}, {1, 2}).clone()});
}

TEST_P(OddTensors, ParametersThatAreViewsOfOneTensorAreVariablesOfTheirOwn) {
  const auto model = make([] {
    const auto parts = numbers().chunk(2);
    return std::make_shared<Bag>(std::vector<Tensor>{parts[0], parts[1]});
  });
  expect_trains(model, {numbers().chunk(2)[0].clone(), numbers().chunk(2)[1].clone()});
}

TEST_P(OddTensors, InterleavedParametersAndABufferBesideThemAreKeptApart) {
  const auto model = make([] {
    const Tensor whole = numbers();
    return std::make_shared<Bag>(std::vector<Tensor>{whole.slice(1, 0, 6, 3), whole.slice(1, 1, 6, 3)},
                                 std::vector<Tensor>{whole.slice(1, 2, 6, 3)});
  });
  expect_trains(model, {numbers().slice(1, 0, 6, 3).clone(), numbers().slice(1, 1, 6, 3).clone()});
  EXPECT_TRUE(torch::equal(model.state().at("c"), numbers().slice(1, 2, 6, 3)));
}

TEST_P(OddTensors, ParametersWithANegativeBitOrOfInferenceModeOrOfAGraphAreTrained) {
  const auto negative = [] { return torch::_neg_view(numbers()); };
  const auto computed = [] { return numbers().requires_grad_() * 2; };
  ASSERT_TRUE(negative().is_neg());
  const auto model = make([&] {
    const std::vector<Tensor> before{negative(), computed()};
    const c10::InferenceMode mode(true);
    return std::make_shared<Bag>(std::vector<Tensor>{before[0], numbers() + 1, before[1]});
  });
  expect_trains(model, {-numbers(), numbers() + 1, numbers() * 2});
}

/// A module whose constructor keeps the transpose of a weight.
struct KeepsATranspose : torch::nn::Module {
  KeepsATranspose() {
    weight = register_parameter("weight", torch::arange(6, torch::kDouble).reshape({2, 3}));
    transposed = weight.t();
  }
  Tensor weight, transposed;
};

TEST_P(OddTensors, AViewOfAParameterThatTheModuleKeepsShowsTheWeightsOnEveryReplica) {
  const auto model = strategy_.make_module([] { return std::make_shared<KeepsATranspose>(); });
  const auto optimizer = strategy_.make_optimizer(model, torch::optim::SGDOptions(1));
  for (int step = 1; step <= 3; ++step) {
    strategy_.run([&](ReplicaContext& ctx) {
      EXPECT_TRUE(torch::equal(model(ctx)->transposed.t(), model(ctx)->weight)) << ctx.replica_id().value();
      (model(ctx)->transposed.sum() / static_cast<double>(ctx.num_replicas())).backward();
      optimizer.step(ctx);
    });
    const Tensor expected = torch::arange(6, torch::kDouble).reshape({2, 3}) - step;
    EXPECT_TRUE(torch::equal(model.variables()[0].read(), expected));
  }
}

TEST_P(OddTensors, AMovedParameterWhoseOldMemoryIsStillShownIsNamedInTheLog) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarning) lines.emplace_back(line);
  });
  make([] { return std::make_shared<Bag>(std::vector<Tensor>{numbers().narrow(1, 1, 3), numbers()}); }, "alone");
  EXPECT_TRUE(lines.empty()) << lines.front();
  std::vector<Tensor> wholes;
  make(
      [&] {
        wholes.push_back(numbers());
        return std::make_shared<Bag>(std::vector<Tensor>{numbers(), wholes.back().narrow(1, 1, 3)});
      },
      "shown");
  set_log_sink({});
  ASSERT_EQ(lines.size(), 1u);
  for (const char* value : {"module 'shown'", "parameter 'b'"}) {
    EXPECT_TRUE(testing::has_value(lines[0], value)) << lines[0];
  }
}

TEST_P(OddTensors, AHookOfAParameterThatIsAViewStays) {
  const auto model = make([] {
    auto bag = std::make_shared<Bag>(std::vector<Tensor>{torch::ones({2, 3}, torch::kDouble)[0]});
    const Tensor mask = torch::tensor({0.0, 1.0, 1.0}, torch::kDouble);
    bag->parameters()[0].register_hook([mask](const Tensor& gradient) { return gradient * mask; });
    return bag;
  });
  const auto optimizer = strategy_.make_optimizer(model, torch::optim::SGDOptions(1));
  strategy_.run([&](ReplicaContext& ctx) {
    (model(ctx)->parameters()[0].sum() / static_cast<double>(ctx.num_replicas())).backward();
    optimizer.step(ctx);
  });
  EXPECT_TRUE(torch::equal(model.variables()[0].read(), torch::tensor({1.0, 0.0, 0.0}, torch::kDouble)));
}

TEST_P(OddTensors, DenseParametersStayAsTheyAre) {
  const auto dense = [] {
    return std::vector<Tensor>{
        numbers().t(),
        torch::arange(48, torch::kDouble).reshape({1, 3, 4, 4}).contiguous(torch::MemoryFormat::ChannelsLast)};
  };
  std::vector<const void*> addresses;
  const auto model = make([&] {
    const Tensor transposed = torch::empty_strided({6, 4}, {1, 6}, torch::kDouble).copy_(numbers().t());
    const auto bag = std::make_shared<Bag>(std::vector<Tensor>{transposed, dense()[1]});
    for (const Tensor& one : bag->parameters()) addresses.push_back(one.data_ptr());
    return bag;
  });
  EXPECT_EQ(model.variables()[0].state().like().strides(), (std::vector<int64_t>{1, 6}));
  EXPECT_TRUE(model.variables()[1].state().like().is_contiguous(torch::MemoryFormat::ChannelsLast));
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(model.variables()[i].state().component(0).data_ptr(), addresses[i]);
  expect_trains(model, {numbers().t().clone(), dense()[1]});
}

TEST_P(OddTensors, ReplicasThatLayTheSameValuesOutDifferentlyAreTrainedAlike) {
  int calls = 0;
  const auto model = make([&] {
    const Tensor other = torch::empty_strided({4, 6}, {1, 4}, torch::kDouble).copy_(numbers());
    return std::make_shared<Bag>(std::vector<Tensor>{calls++ % 2 == 0 ? numbers() : other});
  });
  expect_trains(model, {numbers()});
}

TEST_P(OddTensors, DifferentTensorsThatShareElementsAreRefused) {
  const auto pair = [](const Tensor& a, const Tensor& b, bool buffer = false) {
    return buffer ? std::make_shared<Bag>(std::vector<Tensor>{a}, std::vector<Tensor>{b})
                  : std::make_shared<Bag>(std::vector<Tensor>{a, b});
  };
  const auto refused = [&](const std::function<std::shared_ptr<Bag>()>& factory) {
    expect_error<UsageError>([&] { make(factory); }, "LS-SHARED-MEMORY", {"model.a", "model.b"});
    EXPECT_TRUE(strategy_.variables().empty());
  };
  refused([&] {
    const Tensor whole = numbers();
    return pair(whole.narrow(0, 0, 3), whole.narrow(0, 2, 2));
  });
  refused([&] {
    const Tensor whole = numbers();
    return pair(whole, whole.detach());
  });
  refused([&] {
    const Tensor whole = numbers();
    return pair(whole.slice(1, 0, 6, 2), whole.slice(1, 0, 6, 3));
  });
  refused([&] {
    const Tensor whole = numbers();
    return pair(whole, whole.detach().select(0, 1), true);
  });
  const auto tied = make([&] {
    const Tensor one = numbers();
    return pair(one, one);
  });
  EXPECT_EQ(tied.variables().size(), 1u) << "one tensor under two names is one variable";
}

TEST_P(OddTensors, KindsWithoutHostMemoryOrElementsInARowAreRefusedByName) {
  const Tensor sparse = torch::ones({2, 2}).to_sparse();
  const Tensor meta = torch::ones({2, 2}, torch::kMeta);
  const Tensor quantized = torch::quantize_per_tensor(torch::ones({2, 2}), 0.1, 0, torch::kQInt8);
  for (const auto& [bad, code] : std::vector<std::pair<Tensor, const char*>>{
           {sparse, "LS-NOT-DENSE"}, {meta, "LS-NOT-HOST"}, {quantized, "LS-DTYPE"}}) {
    expect_error<UsageError>([&, &one = bad] { strategy_.make_variable(one, {.name = "v"}); }, code, {"'v'"});
    expect_error<UsageError>(
        [&, &one = bad] {
          make([&] {
            return std::make_shared<Bag>(std::vector<Tensor>{}, std::vector<Tensor>{torch::ones({1}), one.clone()});
          });
        },
        code, {"model.b", "replica 0"});
    const Variable good = strategy_.make_variable(torch::ones({2, 2}), {.name = "good"});
    expect_error<UsageError>([&, &one = bad] { good.assign(one); }, code, {"'good'"});
  }
  expect_error<UsageError>([&] { strategy_.make_variable(Tensor(), {.name = "v"}); }, "LS-NOT-DENSE", {"'v'"});
  EXPECT_TRUE(strategy_.variables().empty());
  strategy_.make_variable(torch::ones({1}), {.name = "v"});
}

TEST_P(OddTensors, InitialAndAssignedValuesMayLieInMemoryInAnyWay) {
  const Tensor complex = torch::complex(numbers(), numbers() + 1);
  for (const VariableSynchronization synchronization :
       {VariableSynchronization::kOnWrite, VariableSynchronization::kOnRead}) {
    const VariableOptions options{.synchronization = synchronization, .aggregation = VariableAggregation::kSum};
    for (const Tensor& odd : {numbers().t(), numbers().select(0, 1).expand({3, 6}), numbers().narrow(1, 2, 2),
                              torch::_neg_view(numbers()), complex.conj(), torch::imag(complex.conj())}) {
      const Tensor expected = odd.clone().resolve_conj().resolve_neg().contiguous();
      const Variable made = strategy_.make_variable(odd, options);
      EXPECT_TRUE(torch::equal(made.read(), expected));
      made.assign(torch::zeros_like(expected));
      made.assign(odd);
      EXPECT_TRUE(torch::equal(made.read(), expected));
      made.assign_add(odd);
      EXPECT_TRUE(torch::equal(made.read(), expected + expected));
      strategy_.run([&](ReplicaContext& ctx) { made.assign(ctx, odd); });
      EXPECT_TRUE(torch::equal(made.read(), expected * strategy_.num_replicas()));
    }
  }
}

TEST_P(OddTensors, ModulesMayHaveAnyOtherKindOfTensor) {
  const auto model = make([] {
    return std::make_shared<Bag>(
        std::vector<Tensor>{torch::tensor(2.0, torch::kDouble), torch::zeros({0, 3}, torch::kDouble), torch::arange(4)},
        std::vector<Tensor>{torch::ones({3}, torch::kBool), torch::complex(torch::ones({2}), torch::zeros({2})),
                            torch::zeros({0})});
  });
  EXPECT_FALSE(model.variables()[2].trainable());
  const auto optimizer = strategy_.make_optimizer(model, torch::optim::SGDOptions(1));  // leaves the integers alone
  strategy_.run([&](ReplicaContext& ctx) {
    (model(ctx)->at("a") + model(ctx)->at("b").sum()).backward();
    optimizer.step(ctx);
  });
  EXPECT_EQ(model.state().at("a").item<double>(), 2.0 - static_cast<double>(strategy_.num_replicas()));
  model.load(model.state());
  EXPECT_TRUE(torch::equal(model.export_module()->at("c"), torch::arange(4)));
  const auto empty = make([] { return std::make_shared<Bag>(std::vector<Tensor>{}); }, "with.point");
  EXPECT_TRUE(empty.variables().empty() && empty.state().empty());
  expect_error<UsageError>([&] { make([] { return std::make_shared<Bag>(std::vector<Tensor>{}); }, ""); }, "LS-NAME");
}

TEST_P(OddTensors, AFactoryThatFailsOnALaterReplicaLeavesNothing) {
  int calls = 0;
  EXPECT_THROW(make([&]() -> std::shared_ptr<Bag> {
                 if (++calls == 2) throw std::out_of_range("mine");
                 return std::make_shared<Bag>(std::vector<Tensor>{torch::ones({1})});
               }),
               std::out_of_range);
  EXPECT_TRUE(strategy_.variables().empty());
  make([] { return std::make_shared<Bag>(std::vector<Tensor>{torch::ones({1})}); });
}

TEST_P(OddTensors, ABufferThatGrewIsSavedLoadedAndExported) {
  const auto model = make([] {
    return std::make_shared<Bag>(std::vector<Tensor>{torch::ones({2})}, std::vector<Tensor>{torch::zeros({0, 2})});
  });
  const auto empty = model.state();
  strategy_.run([&](ReplicaContext& ctx) {
    Tensor bank = model(ctx)->at("b");
    bank.set_data(torch::cat({bank, torch::full({3, 2}, 7.0f)}));
  });
  const auto grown = model.state();
  EXPECT_TRUE(torch::equal(grown.at("b"), torch::full({3, 2}, 7.0f)));
  EXPECT_TRUE(torch::equal(model.export_module()->at("b"), grown.at("b")));
  model.load(grown);
  EXPECT_TRUE(torch::equal(model.state().at("b"), grown.at("b")));
  const auto resumed = make(
      [] {
        return std::make_shared<Bag>(std::vector<Tensor>{torch::ones({2})}, std::vector<Tensor>{torch::zeros({0, 2})});
      },
      "resumed");
  resumed.load(grown);
  EXPECT_TRUE(torch::equal(resumed.state().at("b"), grown.at("b"))) << "a new module, as after a restart";
  model.load(empty);
  EXPECT_EQ(model.state().at("b").size(0), 0) << "as it was made";
  strategy_.run([&](ReplicaContext& ctx) {
    if (ctx.replica_id() == 1) model(ctx)->at("b").set_data(torch::ones({1, 2}));
  });
  expect_error<UsageError>([&] { model.state(); }, "LS-NOT-ALIKE", {"'model.b'", "replica 1", "[1, 2]"});
}

TEST_P(OddTensors, AnExpandedBufferIsReadLoadedAndExported) {
  const auto model = make([] {
    return std::make_shared<Bag>(std::vector<Tensor>{torch::ones({2})},
                                 std::vector<Tensor>{torch::arange(2, torch::kFloat).expand({3, 2})});
  });
  auto state = model.state();
  EXPECT_TRUE(torch::equal(model.export_module()->at("b"), state.at("b")));
  state.at("b") = torch::arange(6, torch::kFloat).reshape({3, 2});
  model.load(state);
  EXPECT_TRUE(torch::equal(model.state().at("b"), state.at("b")));
  EXPECT_TRUE(torch::equal(model.export_module()->at("b"), state.at("b")));
}

INSTANTIATE_TEST_SUITE_P(Placements, OddTensors, ::testing::Values(Copies::kPerMemory, Copies::kPerReplica),
                         [](const auto& copies) {
                           return std::string(copies.param == Copies::kPerMemory ? "PerMemory" : "PerReplica");
                         });

}  // namespace
}  // namespace lockstep
