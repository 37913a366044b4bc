// Values that share memory with what a call writes: they are read before they are overwritten.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/strategy/state_items.h"
#include "lockstep/variable/kinds/written_memory.h"
#include "lockstep/variable/variable_state.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;
using enum VariableSynchronization;
using enum VariableAggregation;

class SharedValues : public ::testing::TestWithParam<Copies> {
 protected:
  static Tensor whole(double value) { return torch::full({1}, value); }
  static Tensor numbers() { return torch::arange(8, torch::kFloat).reshape({2, 2, 2}); }
  /// On-read, 1 on replica 0 and 2 on replica 1.
  Variable one_and_two() {
    const Variable v = strategy_.make_variable(whole(0), {.synchronization = kOnRead});
    v.assign(PerReplica<Tensor>(std::vector<Tensor>{whole(1), whole(2)}));
    return v;
  }
  PerReplica<Tensor> live(const Variable& v) {
    return strategy_.run([&](ReplicaContext& ctx) { return v.value(ctx).detach(); });
  }
  static PerReplica<Tensor> crosswise(const PerReplica<Tensor>& x) {
    return PerReplica<Tensor>(std::vector<Tensor>{x[1], x[0]});
  }
  static std::vector<double> components(const Variable& v) {
    std::vector<double> result;
    for (const Tensor& one : v.components()) result.push_back(one.item<double>());
    return result;
  }
  /// Every copy and every component holds `expected`, and no foreign write is found.
  void expect_everywhere(const Variable& v, const Tensor& expected) {
    for (const Tensor& one : v.components()) EXPECT_TRUE(torch::equal(one, expected)) << one;
    for (const Tensor& copy : v.state().copies()) EXPECT_TRUE(torch::equal(copy, expected)) << copy;
    strategy_.run([&](ReplicaContext& ctx) { EXPECT_TRUE(torch::equal(v.value(ctx), expected)); });
  }

  MirroredStrategy strategy_{{.devices = lanes(2), .replicas = 2, .copies = GetParam(), .verify_every = 1}};
};

using Doubles = std::vector<double>;

TEST_P(SharedValues, ComponentsAreAssignedCrosswise) {
  const Variable v = one_and_two();
  v.assign(crosswise(live(v)));
  EXPECT_EQ(components(v), (Doubles{2, 1}));
  strategy_.run([&](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy&, const PerReplica<Tensor>& x) { v.assign(crosswise(x)); }, v.value(ctx));
  });
  EXPECT_EQ(components(v), (Doubles{1, 2}));
}

TEST_P(SharedValues, ComponentsAreAddedAndSubtractedCrosswise) {
  const Variable sum = one_and_two();
  sum.assign_add(crosswise(live(sum)));
  EXPECT_EQ(components(sum), (Doubles{3, 3}));
  const Variable difference = one_and_two();
  difference.assign_sub(crosswise(live(difference)));
  EXPECT_EQ(components(difference), (Doubles{-1, 1}));
}

TEST_P(SharedValues, OneComponentIsAddedToAll) {
  const Variable v = one_and_two();
  strategy_.run([&](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy&, const PerReplica<Tensor>& x) { v.assign_add(x[0]); }, v.value(ctx));
  });
  EXPECT_EQ(components(v), (Doubles{2, 3}));
}

TEST_P(SharedValues, ComponentsUnderAnotherStorageAreFoundByTheirAddresses) {
  const Variable v = one_and_two();
  const auto x = live(v);
  const auto outside = [](const Tensor& one) { return torch::from_blob(one.data_ptr(), {1}); };
  v.assign(PerReplica<Tensor>(std::vector<Tensor>{outside(x[1]), outside(x[0])}));
  EXPECT_EQ(components(v), (Doubles{2, 1}));
}

TEST_P(SharedValues, AViewOfAComponentIsAssignedToIt) {
  const Variable v = strategy_.make_variable(numbers(), {.synchronization = kOnRead});
  strategy_.run([&](ReplicaContext& ctx) { v.assign(ctx, v.value(ctx).transpose(0, 2)); });
  for (const Tensor& one : v.components()) EXPECT_TRUE(torch::equal(one, numbers().transpose(0, 2))) << one;
  v.assign(live(v)[0].transpose(0, 2));
  for (const Tensor& one : v.components()) EXPECT_TRUE(torch::equal(one, numbers())) << one;
}

TEST_P(SharedValues, AViewOfAMirroredVariableIsAssignedToAllCopies) {
  const Variable w = strategy_.make_variable(numbers(), {.aggregation = kOnlyFirstReplica});
  strategy_.run([&](ReplicaContext& ctx) { w.assign(ctx, w.value(ctx).detach()[1].t().expand({2, 2, 2})); });
  const Tensor row = numbers()[1].t().expand({2, 2, 2});
  expect_everywhere(w, row);
  w.assign(numbers());
  strategy_.run([&](ReplicaContext& ctx) { w.assign(ctx, w.value(ctx).transpose(0, 1)); });
  expect_everywhere(w, numbers().transpose(0, 1));
  w.assign(live(w)[1].transpose(0, 1));
  expect_everywhere(w, numbers());
}

TEST_P(SharedValues, AnUpdateMayReadWhatItChanges) {
  const Variable w = strategy_.make_variable(numbers(), {.name = "w"});
  const auto x = live(w);
  strategy_.update(w, [&](Tensor&) { w.assign(x[0].transpose(0, 1)); });
  expect_everywhere(w, numbers().transpose(0, 1));
  strategy_.update(w, [&](Tensor& value) { w.assign(value.transpose(0, 1)); });
  expect_everywhere(w, numbers());
  strategy_.update(w, [&](Tensor& value) { value = x[0].transpose(0, 1); });
  expect_everywhere(w, numbers().transpose(0, 1));

  const Variable v = one_and_two();
  const auto y = live(v);
  strategy_.update(
      v, [](Tensor& value, const Tensor& other) { value = other; }, crosswise(y));
  EXPECT_EQ(components(v), (Doubles{2, 1}));
}

TEST_P(SharedValues, AStateItemTakesTheComponentsThemselves) {
  const Variable v = one_and_two();
  const auto x = live(v);
  for (const StateItem& item : strategy_.state_items()) {
    if (item.name == v.name()) item.write({x[1], x[0]});
  }
  EXPECT_EQ(components(v), (Doubles{2, 1}));
}

struct Pair : torch::nn::Module {
  explicit Pair(bool buffers) {
    if (buffers) {
      register_buffer("a", torch::ones({2}));
      register_buffer("b", torch::full({2}, 2.0));
    } else {
      register_parameter("a", torch::ones({2}));
      register_parameter("b", torch::full({2}, 2.0));
    }
  }
};

TEST_P(SharedValues, AModuleIsLoadedFromItsOwnTensors) {
  for (const bool buffers : {false, true}) {
    const auto model = strategy_.make_module([&] { return std::make_shared<Pair>(buffers); });
    std::vector<std::map<std::string, Tensor>> swapped(2);
    strategy_.run([&](ReplicaContext& ctx) {
      const auto named = buffers ? model(ctx)->named_buffers() : model(ctx)->named_parameters();
      swapped[static_cast<std::size_t>(ctx.replica_id().value())] = {{"a", named["b"].detach()},
                                                                     {"b", named["a"].detach()}};
    });
    for (const auto& live : swapped) {
      const auto before = model.state();
      model.load(live);
      EXPECT_TRUE(torch::equal(model.state().at("a"), before.at("b"))) << model.state().at("a");
      EXPECT_TRUE(torch::equal(model.state().at("b"), before.at("a"))) << model.state().at("b");
    }
    expect_everywhere(model.variables()[0], torch::ones({2}));
    expect_everywhere(model.variables()[1], torch::full({2}, 2.0));
  }
}

TEST_P(SharedValues, AnOptimizerIsLoadedFromItsOwnTensors) {
  const auto model = strategy_.make_module([] { return std::make_shared<Pair>(false); });
  auto optimizer = strategy_.make_optimizer(model, torch::optim::SGDOptions(0.1).momentum(0.9));
  auto state = optimizer.state();
  std::vector<std::string> names;
  for (const auto& [name, value] : state) {
    if (value.dim() == 1) names.push_back(name);
  }
  ASSERT_EQ(names.size(), 2u);
  state[names[0]] = torch::full({2}, 1.0);
  state[names[1]] = torch::full({2}, 2.0);
  optimizer.load(state);
  for (const Variable& slot : strategy_.variables()) {
    if (slot.name() == names[0]) state[names[1]] = slot.state().component(0);
    if (slot.name() == names[1]) state[names[0]] = slot.state().component(0);
  }
  optimizer.load(state);
  EXPECT_TRUE(torch::equal(optimizer.state().at(names[0]), torch::full({2}, 2.0)));
  EXPECT_TRUE(torch::equal(optimizer.state().at(names[1]), torch::full({2}, 1.0)));
}

TEST_P(SharedValues, AWriteOfOtherValuesCopiesNone) {
  const Variable w = strategy_.make_variable(torch::zeros({1 << 20}));
  const Tensor whole = torch::ones({2 << 20});
  const auto x = live(w);
  const internal::WrittenMemory written(w.state());
  const Tensor part = whole.narrow(0, 7, 1 << 20);
  EXPECT_TRUE(written.copied_if_inside(part).is_same(part));
  EXPECT_FALSE(written.copied_if_inside(x[0]).is_same(x[0]));
  EXPECT_FALSE(written.copied_if_inside(x[1]).is_same(x[1]));
}

TEST(WrittenMemory, KnowsWhatLiesInItWhateverTheOrder) {
  const Tensor memory = torch::zeros({100});
  internal::WrittenMemory written;
  for (const int64_t begin : {40, 10, 60, 20, 50}) written.add(memory.narrow(0, begin, 10));
  for (int64_t i = 0; i < 100; ++i) {
    const bool inside = (i >= 10 && i < 30) || (i >= 40 && i < 70);
    EXPECT_EQ(written.overlaps(memory.narrow(0, i, 1)), inside) << i;
  }
  EXPECT_TRUE(written.overlaps(memory));
  EXPECT_TRUE(written.overlaps(memory.narrow(0, 29, 11)));
  EXPECT_FALSE(written.overlaps(memory.narrow(0, 30, 10)));
  EXPECT_FALSE(written.overlaps(memory.narrow(0, 15, 0)));
}

INSTANTIATE_TEST_SUITE_P(Copies, SharedValues, ::testing::Values(Copies::kPerMemory, Copies::kPerReplica),
                         [](const auto& test) { return test.param == Copies::kPerReplica ? "each" : "one"; });

}  // namespace
}  // namespace lockstep
