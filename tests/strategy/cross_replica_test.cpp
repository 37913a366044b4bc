// Strategy::reduce, gather and broadcast: each wrong argument gives the error code that names it.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <mutex>
#include <set>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;

class CrossReplica : public ::testing::Test {
 protected:
  template <class Call>
  static std::string code_of(const Call& call) {
    try {
      call();
    } catch (const UsageError& error) {
      return error.code();
    } catch (const std::exception& other) {
      ADD_FAILURE() << other.what();
    }
    return "no UsageError";
  }
  PerReplica<Tensor> of_each(const std::function<Tensor(int64_t)>& make) {
    return strategy_.per_replica([&](ReplicaId r) { return make(r.value()); });
  }
  MirroredStrategy strategy_{{.devices = lanes(1), .replicas = 3}};
};

TEST_F(CrossReplica, AnAxisUnderTwoNamesIsNamed) {
  const auto values = of_each([](int64_t) { return torch::ones({2, 3}); });
  for (const Axes& axes : {Axes{0, -2}, Axes{1, 1}, Axes{-1, 0, 1}}) {
    EXPECT_EQ(code_of([&] { strategy_.reduce(Reduction::kSum, values, axes); }), "LS-AXIS");
    EXPECT_EQ(code_of([&] { strategy_.reduce(Reduction::kMax, values, axes); }), "LS-AXIS");
  }
  EXPECT_EQ(strategy_.reduce(Reduction::kSum, values, {0, -1}).item<double>(), 18);
}

TEST_F(CrossReplica, MisuseHasACode) {
  const auto alike = of_each([](int64_t) { return torch::ones({2, 3}); });
  const auto other_shapes = of_each([](int64_t r) { return torch::ones({2, r + 1}); });
  const auto other_dtypes = of_each([](int64_t r) { return torch::ones({2}, r == 1 ? torch::kInt : torch::kFloat); });
  const auto undefined = of_each([](int64_t r) { return r == 2 ? Tensor() : torch::ones({2}); });
  const auto empty = of_each([](int64_t) { return torch::ones({0, 3}); });
  EXPECT_EQ(code_of([&] { strategy_.reduce(Reduction::kSum, alike, 2); }), "LS-AXIS");
  EXPECT_EQ(code_of([&] { strategy_.gather(alike, -3); }), "LS-AXIS");
  EXPECT_EQ(code_of([&] { strategy_.gather(of_each([](int64_t) { return torch::ones({}); })); }), "LS-AXIS");
  EXPECT_EQ(code_of([&] { strategy_.reduce(Reduction::kSum, other_shapes); }), "LS-NOT-ALIKE");
  EXPECT_EQ(code_of([&] { strategy_.reduce(Reduction::kSum, other_shapes, 0); }), "LS-NOT-ALIKE");
  EXPECT_EQ(code_of([&] { strategy_.gather(other_shapes, 0); }), "LS-NOT-ALIKE");
  EXPECT_EQ(code_of([&] { strategy_.gather(other_dtypes, 0); }), "LS-NOT-ALIKE");
  EXPECT_EQ(code_of([&] { strategy_.reduce(Reduction::kSum, undefined); }), "LS-NOT-DENSE");
  EXPECT_EQ(code_of([&] { strategy_.broadcast(0, torch::eye(2).to_sparse()); }), "LS-NOT-DENSE");
  EXPECT_EQ(code_of([&] { strategy_.broadcast(3, torch::ones({2})); }), "LS-REPLICA-RANGE");
  EXPECT_EQ(code_of([&] { strategy_.reduce(Reduction::kMean, empty, 0); }), "LS-NO-ELEMENTS");
  EXPECT_EQ(code_of([&] { strategy_.reduce(Reduction::kSum, PerReplica<Tensor>({torch::ones({2})})); }),
            "LS-PER-REPLICA-SIZE");
}

TEST_F(CrossReplica, ChangesNothingOfTheStrategy) {
  const Strategy& strategy = strategy_;
  const auto values = of_each([](int64_t r) { return torch::full({1}, static_cast<double>(r)); });
  EXPECT_EQ(strategy.reduce(Reduction::kSum, values).item<double>(), 3);
  EXPECT_EQ(strategy.gather(values).numel(), 3);
  EXPECT_EQ(strategy.broadcast(0, values[1]).item<double>(), 1);
}

/// Asks a tree for its sums, as a reducer does that decides something else than how values are added.
struct WrapsTheTree : Reducer {
  explicit WrapsTheTree(bool passes_leaves_on) : passes_on(passes_leaves_on) {}
  std::string describe() const override { return "by a tree inside"; }
  Tensor reduce(Reduction reduction, std::span<const Tensor> values) const override {
    ++calls;
    const std::lock_guard<std::mutex> lock(mutex);  // several lanes call at a time
    for (const Tensor& value : values) types.insert(value.scalar_type());
    return tree.reduce(reduction, values);
  }
  bool in_tree_order() const override { return passes_on && tree.in_tree_order(); }
  const bool passes_on;
  TreeReducer tree;
  mutable std::atomic<int64_t> calls{0};
  mutable std::mutex mutex;
  mutable std::set<at::ScalarType> types;
};

class Custom final : public Strategy {
 public:
  explicit Custom(std::shared_ptr<const Reducer> reducer)
      : Strategy(StrategySetup{.name = "Custom",
                               .topology = std::make_shared<HostTopology>(lanes(2), 4),
                               .reducer = std::move(reducer),
                               .seed = 5}) {}
};

std::vector<Tensor> trained(Strategy& strategy) {
  const auto model = strategy.make_module([] { return torch::nn::Linear(3, 2); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    strategy.run([&](ReplicaContext& ctx) {
      const Tensor input = torch::randn({2, 3}, ctx.random());
      (model(ctx)->forward(input).square().mean() / 4).backward();
      optimizer.step(ctx);
    });
  }
  std::vector<Tensor> values;
  for (const Variable& variable : model.variables()) values.push_back(variable.read());
  return values;
}

TEST(ReducersOfOnesOwn, ThatWrapTheTreePassItsLeavesOn) {
  const auto passing = std::make_shared<WrapsTheTree>(true);
  const auto adding = std::make_shared<WrapsTheTree>(false);
  Custom with_leaves(passing);
  Custom with_one_leaf(adding);
  MirroredStrategy mirrored({.devices = lanes(2), .replicas = 4, .seed = 5});
  const auto expected = trained(mirrored);
  const auto leaves = trained(with_leaves);
  const auto one = trained(with_one_leaf);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(leaves[i], expected[i]));
    EXPECT_TRUE(torch::equal(one[i], expected[i]));
  }
  EXPECT_EQ(passing->calls, 0);     // the update's own pass adds
  EXPECT_EQ(adding->calls, 2 * 5);  // two variables, five steps
}

TEST(ReducersOfOnesOwn, AreGivenIntegersThatDoNotWrapWhereAMeanIsAskedFor) {
  const auto adding = std::make_shared<WrapsTheTree>(false);
  Custom strategy(adding);
  const auto values = strategy.per_replica([](ReplicaId) { return torch::full({2}, 200, torch::kByte); });
  EXPECT_EQ(strategy.reduce(Reduction::kMean, values)[0].item<double>(), 200);
  EXPECT_EQ(strategy.reduce(Reduction::kMean, values, 0).item<double>(), 200);
  EXPECT_EQ(adding->types, std::set<at::ScalarType>{torch::kLong});
  strategy.reduce(Reduction::kSum, values);
  EXPECT_TRUE(adding->types.count(torch::kByte));
}

}  // namespace
}  // namespace lockstep
