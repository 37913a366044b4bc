// What a user's reducer returns belongs to whoever asked for it.
#include "lockstep/reduce/reducer.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

using torch::Tensor;

/// Breaks its contract: it returns a value that it was given, or a view of one.
class ReturnsTheFirst final : public Reducer {
 public:
  explicit ReturnsTheFirst(bool as_view) : as_view_(as_view) {}
  std::string describe() const override { return "by taking the first"; }
  Tensor reduce(Reduction reduction, std::span<const Tensor> values) const override {
    const Tensor& first = values.front();
    if (reduction == Reduction::kMean && at::isIntegralType(first.scalar_type(), false))
      return first.to(torch::kDouble);
    return as_view_ ? first.view_as(first) : first;
  }

 private:
  const bool as_view_;
};

TEST(ReduceBy, AResultThatIsAGivenValueIsCopied) {
  for (const bool as_view : {false, true}) {
    for (const auto type : {torch::kFloat, torch::kLong, torch::kComplexFloat}) {
      const std::vector<Tensor> values{torch::ones({3}, type), torch::ones({3}, type)};
      Tensor result = internal::reduce_by(ReturnsTheFirst(as_view), Reduction::kSum, values);
      result.fill_(5);
      EXPECT_TRUE(torch::equal(values[0], torch::ones({3}, type))) << type;
      EXPECT_TRUE(torch::equal(result, torch::full({3}, 5, type))) << type;
    }
  }
}

class KeepsTheFirst final : public Strategy {
 public:
  KeepsTheFirst()
      : Strategy(StrategySetup{.name = "KeepsTheFirst",
                               .topology = std::make_shared<HostTopology>(testing::lanes(1), 2, false),
                               .reducer = std::make_shared<ReturnsTheFirst>(false)}) {}
};

TEST(ReduceBy, AReadOfAVariableIsNoReplicasComponent) {
  KeepsTheFirst strategy;
  auto variable = strategy.make_variable(torch::ones({3}), {.name = "v",
                                                            .trainable = false,
                                                            .synchronization = VariableSynchronization::kOnRead,
                                                            .aggregation = VariableAggregation::kSum});
  strategy.run([&](ReplicaContext& ctx) { variable.assign(ctx, torch::full({3}, 2.0)); });
  variable.read().fill_(5);
  for (const Tensor& component : variable.components()) EXPECT_TRUE(torch::equal(component, torch::full({3}, 2.0)));
}

}  // namespace
}  // namespace lockstep
