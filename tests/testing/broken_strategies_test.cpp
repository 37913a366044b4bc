// Broken strategies: each breaks one rule of one decision, and the conformance suite names the check that finds it and
// where to look.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>

#include "lockstep/testing/conformance.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::Conformance;
using testing::expect_conformance;
using torch::Tensor;
using Values = std::span<const Tensor>;

/// Adds one value after the other, in the order of `order`, and divides a mean by `count`.
Tensor added(Reduction reduction, Values values, const std::vector<std::size_t>& order, double count) {
  Tensor result = values[order.front()].clone();
  for (auto next = order.begin() + 1; next != order.end(); ++next) {
    const Tensor& value = values[*next];
    switch (reduction) {
      case Reduction::kMin: result = torch::minimum(result, value); break;
      case Reduction::kMax: result = torch::maximum(result, value); break;
      default: result = result + value;
    }
  }
  if (reduction != Reduction::kMean) return result;
  return at::isIntegralType(result.scalar_type(), true) ? result.to(torch::kDouble) / count : result / count;
}

std::vector<std::size_t> in_order(std::size_t count, std::size_t first = 0) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < count; ++i) order.push_back((first + i) % count);
  return order;
}

class OwnReducer : public Reducer {
 public:
  std::string describe() const override { return "in an order of one's own"; }
};

/// Right: one value after the other.
class Sequential final : public OwnReducer {
  Tensor reduce(Reduction reduction, Values values) const override {
    return added(reduction, values, in_order(values.size()), static_cast<double>(values.size()));
  }
};

class ForgetsTheLast final : public OwnReducer {
  Tensor reduce(Reduction reduction, Values values) const override {
    const std::size_t count = std::max<std::size_t>(values.size() - 1, 1);
    return added(reduction, values.first(count), in_order(count), static_cast<double>(count));
  }
};

class DividesByOneMore final : public OwnReducer {
  Tensor reduce(Reduction reduction, Values values) const override {
    return added(reduction, values, in_order(values.size()), static_cast<double>(values.size() + 1));
  }
};

class AveragesWhereItShouldAdd final : public OwnReducer {
  Tensor reduce(Reduction reduction, Values values) const override {
    const Tensor result = added(reduction, values, in_order(values.size()), static_cast<double>(values.size()));
    const bool sum = reduction == Reduction::kSum && at::isFloatingType(result.scalar_type());
    return sum ? result / static_cast<double>(values.size()) : result;
  }
};

class BeginsWithAnotherEachTime final : public OwnReducer {
  Tensor reduce(Reduction reduction, Values values) const override {
    return added(reduction, values, in_order(values.size(), calls_++ % values.size()),
                 static_cast<double>(values.size()));
  }
  mutable std::atomic<std::size_t> calls_{0};
};

class AddsByAddress final : public OwnReducer {
  Tensor reduce(Reduction reduction, Values values) const override {
    std::vector<std::size_t> order = in_order(values.size());
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return values[a].data_ptr() < values[b].data_ptr(); });
    return added(reduction, values, order, static_cast<double>(values.size()));
  }
};

class AddsIntoTheFirst final : public OwnReducer {
  Tensor reduce(Reduction reduction, Values values) const override {
    const Tensor result = added(reduction, values, in_order(values.size()), static_cast<double>(values.size()));
    if (result.scalar_type() != values.front().scalar_type()) return result;
    Tensor first = values.front();
    return first.copy_(result);
  }
};

/// The last replica stands in no copy.
class LeavesOneOut final : public Placement {
 public:
  std::string describe() const override { return "for all but one"; }
  std::vector<VariableCopy> copies(const NewVariable&, const Lanes& lanes) const override {
    VariableCopy copy{"cpu", {}};
    for (int64_t r = 0; r + 1 < lanes.replicas; ++r) copy.replicas.push_back(r);
    return {copy};
  }
};

class Mine : public Strategy {
 public:
  explicit Mine(StrategySetup setup) : Strategy(std::move(setup)) {}
};

/// Of three replicas on one lane, which is the least that shows an order, and of four on two.
template <class OneReducer>
Conformance with_reducer() {
  return {.make =
              [](int64_t replicas, int lanes, uint64_t seed) {
                return std::make_unique<Mine>(
                    StrategySetup{.name = "Mine",
                                  .topology = std::make_shared<HostTopology>(testing::lanes(lanes), replicas),
                                  .reducer = std::make_shared<OneReducer>(),
                                  .seed = seed});
              },
          .replicas = {3, 4},
          .more_replicas = {}};
}

/// Runs the suite, which must find all of `parts` and none of `others`.
void expect_found(const Conformance& conformance, const std::vector<std::string>& parts,
                  const std::vector<std::string>& others = {}) {
  const auto error = testing::error_from<DivergenceError>([&] { expect_conformance(conformance); });
  EXPECT_EQ(error.code(), "LS-NO-STRATEGY");
  const std::string text = error.what();
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n  in: " << text;
  for (const std::string& other : others) EXPECT_EQ(text.find(other), std::string::npos) << other << "\n  in: " << text;
}

TEST(BrokenStrategy, IsNoneWhoseReducerAddsOneAfterTheOther) { expect_conformance(with_reducer<Sequential>()); }

TEST(BrokenStrategy, ThatForgetsTheLastReplicaIsFound) {
  expect_found(
      with_reducer<ForgetsTheLast>(),
      {"\n  ReduceIsOfEveryReplicasValueOnce_3ReplicasOn1Lane: Mine of 3 replicas on 1 lane: reduce(sum) of Float [] "
       "is Float [] {-3}, expected Float [] {-5} [LS-NO-STRATEGY]\n    look at the strategy's Reducer",
       "\n  ReduceOverAxesIsOfAllElements_4ReplicasOn2Lanes", "\n  AllReduceIsDifferentiable_",
       "\n  AnOptimizerStepsByTheSumOfAllGradients_", "\n  EveryCellOfTheMatrixDoesWhatTheTableSays_",
       "\n  TrainingWithSgdIsOneDevices_", "\n  TrainingWithAdamWIsOneDevices_"},
      {"BroadcastGives", "HasTheShape", "ReduceGivesTheSameBitsEachTime", "TrainingGivesTheSameBits"});
}

TEST(BrokenStrategy, ThatDividesByTheWrongNumberIsFound) {
  expect_found(
      with_reducer<DividesByOneMore>(),
      {"\n  ReduceIsOfEveryReplicasValueOnce_3ReplicasOn1Lane: Mine of 3 replicas on 1 lane: reduce(mean)",
       "\n  EveryCellOfTheMatrixDoesWhatTheTableSays_3ReplicasOn1Lane: Mine of 3 replicas on 1 lane: assign of a "
       "variable of Float, on-write, aggregation mean, in a step",
       "\n  AnOnReadMeanOfEqualComponentsHasTheirBits_", "\n  AllReduceIsDifferentiable_"},
      {"ReduceGivesTheSameBitsEachTime", "TrainingWithSgdIsOneDevices"});
}

TEST(BrokenStrategy, ThatAveragesGradientsIsFound) {
  expect_found(with_reducer<AveragesWhereItShouldAdd>(),
               {"\n  ReduceIsOfEveryReplicasValueOnce_", "\n  AnOptimizerStepsByTheSumOfAllGradients_",
                "\n  TrainingWithSgdIsOneDevices_"},
               {"ReduceGivesTheSameBitsEachTime"});
}

TEST(BrokenStrategy, WhoseOrderChangesWithEveryCallIsFound) {
  expect_found(with_reducer<BeginsWithAnotherEachTime>(),
               {"\n  ReduceGivesTheSameBitsEachTime_3ReplicasOn1Lane",
                "\n  ReduceGivesTheSameBitsEachTime_4ReplicasOn2Lanes", "in the order of replicas"},
               {"ReduceIsOfEveryReplicasValueOnce", "TrainingWithSgdIsOneDevices"});
}

TEST(BrokenStrategy, WhoseOrderIsThatOfAddressesIsFound) {
  expect_found(with_reducer<AddsByAddress>(),
               {"\n  ReduceGivesTheSameBitsEachTime_3ReplicasOn1Lane",
                "\n  ReduceGivesTheSameBitsEachTime_4ReplicasOn2Lanes", "whatever their addresses"},
               {"ReduceIsOfEveryReplicasValueOnce", "TrainingWithSgdIsOneDevices"});
}

TEST(BrokenStrategy, WhoseReducerWritesWhatItWasGivenIsFound) {
  expect_found(
      with_reducer<AddsIntoTheFirst>(),
      {"\n  ResultsAreTensorsOfTheirOwn_3ReplicasOn1Lane: Mine of 3 replicas on 1 lane: what replica 0 gave to"});
}

TEST(BrokenStrategy, WhosePlacementLeavesAReplicaOutIsFound) {
  const auto make = [](int64_t replicas, int lanes, uint64_t seed) {
    return std::make_unique<Mine>(
        StrategySetup{.name = "Mine",
                      .topology = std::make_shared<HostTopology>(testing::lanes(lanes), replicas),
                      .placement = std::make_shared<LeavesOneOut>(),
                      .seed = seed});
  };
  expect_found({.make = make, .replicas = {3}, .lanes = {1}, .more_replicas = {}},
               {"\n  EveryCellOfTheMatrixDoesWhatTheTableSays_3ReplicasOn1Lane", "for all but one",
                "\n  VariablesBeginAsOneDevices_3ReplicasOn1Lane", "look at the strategy's Placement"},
               {"ReduceIsOfEveryReplicasValueOnce"});
}

}  // namespace
}  // namespace lockstep
