// Strategies that are right for common values and variables and wrong for others: the conformance suite finds each, and
// only by the checks of those others.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <set>

#include "lockstep/testing/conformance.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::Conformance;
using testing::conformance_checks;
using torch::Tensor;
using Values = std::vector<Tensor>;

/// In tree order, of values that were changed before, with a result that is changed after.
class Changing : public Reducer {
 public:
  std::string describe() const override { return "changed"; }
  Tensor reduce(Reduction reduction, std::span<const Tensor> values) const override {
    Values given;
    for (const Tensor& value : values) given.push_back(before(reduction, value));
    return after(reduction, TreeReducer().reduce(reduction, given), values);
  }

 protected:
  virtual Tensor before(Reduction, const Tensor& value) const { return value; }
  virtual Tensor after(Reduction, const Tensor& result, std::span<const Tensor>) const { return result; }
};

class AddsFiveThousandElementsAlone final : public Changing {
  Tensor after(Reduction, const Tensor& result, std::span<const Tensor> values) const override {
    if (result.numel() <= 5000) return result;
    Tensor rest = result.view({-1}).slice(0, 5000);
    rest.copy_(values.front().reshape({-1}).slice(0, 5000));
    return result;
  }
};

class ReadsAsIfContiguous final : public Changing {
  Tensor before(Reduction, const Tensor& value) const override {
    return value.as_strided(value.sizes(), c10::contiguous_strides(value.sizes()));
  }
};

class TakesBytesForSigned final : public Changing {
  Tensor before(Reduction, const Tensor& value) const override {
    return value.scalar_type() == torch::kByte ? value.view(torch::kChar) : value;
  }
  Tensor after(Reduction, const Tensor& result, std::span<const Tensor>) const override {
    return result.scalar_type() == torch::kChar ? result.view(torch::kByte) : result;
  }
};

class DropsTheImaginaryPart final : public Changing {
  Tensor before(Reduction, const Tensor& value) const override {
    return value.is_complex() ? torch::complex(torch::real(value), torch::zeros_like(torch::real(value))) : value;
  }
};

class AddsDoublesAsFloats final : public Changing {
  Tensor before(Reduction, const Tensor& value) const override {
    return value.scalar_type() == torch::kDouble ? value.to(torch::kFloat).to(torch::kDouble) : value;
  }
};

class TakesNanForZero final : public Changing {
  Tensor before(Reduction reduction, const Tensor& value) const override {
    return value.is_floating_point() && reduction != Reduction::kSum ? value.masked_fill(value.isnan(), 0) : value;
  }
};

class CutsLargeValues final : public Changing {
  Tensor before(Reduction reduction, const Tensor& value) const override {
    const bool mean = value.scalar_type() == torch::kFloat && reduction == Reduction::kMean;
    return mean ? value.clamp(-1e12, 1e12) : value;
  }
};

class CutsLargeSums final : public Changing {
  Tensor after(Reduction reduction, const Tensor& result, std::span<const Tensor>) const override {
    const bool sum = result.scalar_type() == torch::kFloat && reduction == Reduction::kSum;
    return sum ? result.clamp(-1e4, 1e4) : result;
  }
};

class Averages final : public Changing {
  Tensor after(Reduction reduction, const Tensor& result, std::span<const Tensor> values) const override {
    const bool sum = result.scalar_type() == torch::kFloat && reduction == Reduction::kSum;
    return sum ? result / static_cast<double>(values.size()) : result;
  }
};

/// Sums of float64, such as those of metrics, lack the last replica's value.
class ForgetsTheLastDouble final : public Changing {
  Tensor after(Reduction reduction, const Tensor& result, std::span<const Tensor> values) const override {
    const bool sum = result.scalar_type() == torch::kDouble && reduction == Reduction::kSum;
    return sum ? result - values.back() : result;
  }
};

/// Adds in another order after its first sums, as if a history of its own decided.
class TurnsAround final : public Reducer {
 public:
  std::string describe() const override { return "by history"; }
  Tensor reduce(Reduction reduction, std::span<const Tensor> values) const override {
    Values given(values.begin(), values.end());
    if (calls_++ >= 8) std::reverse(given.begin(), given.end());
    return TreeReducer().reduce(reduction, given);
  }

 private:
  mutable std::atomic<int> calls_{0};
};

class ForgetsTheFifth final : public Reducer {
 public:
  std::string describe() const override { return "by four"; }
  Tensor reduce(Reduction reduction, std::span<const Tensor> values) const override {
    return TreeReducer().reduce(reduction, values.first(std::min<std::size_t>(values.size(), 4)));
  }
};

/// One copy for all, but for variables for which `wrong` says so: there the last replica stands in none.
class LeavesOneOutOf final : public Placement {
 public:
  explicit LeavesOneOutOf(std::function<bool(const NewVariable&)> wrong) : wrong_(std::move(wrong)) {}
  std::string describe() const override { return "one copy for all replicas"; }
  std::vector<VariableCopy> copies(const NewVariable& variable, const Lanes& lanes) const override {
    std::vector<VariableCopy> copies = OneCopyPlacement().copies(variable, lanes);
    if (wrong_(variable)) copies.back().replicas.pop_back();
    return copies;
  }

 private:
  std::function<bool(const NewVariable&)> wrong_;
};

/// Trains large parameters locally, and says nothing of it.
class TrainsLargeOnesLocally final : public Synchronization {
 public:
  std::string describe() const override { return "large ones locally"; }
  bool averages_after(int64_t) const override { return false; }
  bool trains_locally(const NewVariable& variable) const override {
    return variable.parameter && variable.trainable && c10::multiply_integers(variable.sizes) > 1000;
  }
};

class Mine final : public Strategy {
 public:
  explicit Mine(StrategySetup setup) : Strategy(std::move(setup)) {}
};

Conformance with(std::shared_ptr<const Reducer> reducer, std::shared_ptr<const Placement> placement = nullptr,
                 std::shared_ptr<const Synchronization> synchronization = nullptr) {
  return {.make =
              [=](int64_t replicas, int lanes, uint64_t seed) {
                return std::make_unique<Mine>(
                    StrategySetup{.name = "Mine",
                                  .topology = std::make_shared<HostTopology>(testing::lanes(lanes), replicas),
                                  .placement = placement,
                                  .reducer = reducer,
                                  .synchronization = synchronization,
                                  .seed = seed});
              },
          .replicas = {3},
          .lanes = {1},
          .more_replicas = {}};
}
Conformance with(std::shared_ptr<const Placement> placement) { return with(nullptr, std::move(placement)); }

/// The names, without their shapes, of the checks that fail.
std::set<std::string> failing(const Conformance& conformance) {
  std::set<std::string> names;
  for (const auto& check : conformance_checks(conformance)) {
    try {
      check.run();
    } catch (const DivergenceError& error) {
      EXPECT_EQ(error.code(), "LS-NO-STRATEGY");
      names.insert(check.name.substr(0, check.name.find('_')));
    }
  }
  return names;
}

using Names = std::set<std::string>;

TEST(BrokenValues, NothingIsFoundInAReducerThatChangesNothing) {
  EXPECT_EQ(failing(with(std::make_shared<Changing>())), Names{});
}

TEST(BrokenValues, LargeOnes) {
  EXPECT_EQ(failing(with(std::make_shared<AddsFiveThousandElementsAlone>())),
            (Names{"ReduceTakesLargeValues", "VariablesHaveAnySizeAndName", "ParametersOfAnySizeAndNameTrainAlike"}));
}

TEST(BrokenValues, OnesThatDoNotLieInOrder) {
  EXPECT_EQ(failing(with(std::make_shared<ReadsAsIfContiguous>())), Names{"ReduceTakesValuesHoweverTheyLie"});
}

TEST(BrokenValues, Bytes) {
  EXPECT_EQ(failing(with(std::make_shared<TakesBytesForSigned>())), Names{"ReduceTakesEveryDtype"});
}

TEST(BrokenValues, ComplexOnes) {
  EXPECT_EQ(failing(with(std::make_shared<DropsTheImaginaryPart>())), Names{"ReduceTakesEveryDtype"});
}

TEST(BrokenValues, DoublesThatNoFloatHolds) {
  EXPECT_TRUE(failing(with(std::make_shared<AddsDoublesAsFloats>())).contains("ReduceTakesEveryDtype"));
}

TEST(BrokenValues, WhatIsNoNumber) {
  EXPECT_EQ(failing(with(std::make_shared<TakesNanForZero>())), Names{"ReduceKeepsWhatIsNoNumber"});
}

TEST(BrokenValues, LargeNumbers) {
  EXPECT_EQ(failing(with(std::make_shared<CutsLargeValues>())),
            (Names{"ReduceTakesEveryDtype", "ReduceKeepsWhatIsNoNumber"}));
}

TEST(BrokenValues, ThoseOfMoreReplicas) {
  Conformance conformance = with(std::make_shared<ForgetsTheFifth>());
  EXPECT_EQ(failing(conformance), Names{});
  conformance.more_replicas = {5, 16};
  EXPECT_EQ(failing(conformance), Names{"ValuesOfSoManyReplicasBecomeOne"});
}

TEST(BrokenVariables, LargeOnes) {
  const auto large = [](const NewVariable& variable) { return c10::multiply_integers(variable.sizes) > 5000; };
  EXPECT_EQ(failing(with(std::make_shared<LeavesOneOutOf>(large))),
            (Names{"ReduceTakesLargeValues", "VariablesHaveAnySizeAndName", "ParametersOfAnySizeAndNameTrainAlike"}));
}

TEST(BrokenVariables, OnesOfANameOfTheirOwn) {
  const auto embedding = [](const NewVariable& variable) { return variable.name.starts_with("embedding"); };
  EXPECT_EQ(failing(with(std::make_shared<LeavesOneOutOf>(embedding))), Names{"VariablesHaveAnySizeAndName"});
}

TEST(BrokenVariables, MovingAverages) {
  const auto average = [](const NewVariable& variable) { return variable.name.ends_with("/average"); };
  EXPECT_EQ(failing(with(std::make_shared<LeavesOneOutOf>(average))),
            (Names{"AllFeaturesGiveTheSameBitsEachTimeAndOnAnyLanes", "MovingAveragesAreOneDevices"}));
}

TEST(BrokenVariables, ParametersOfSyncBatchNorm) {
  const auto of_norm = [](const NewVariable& variable) { return variable.name.ends_with(".norm.weight"); };
  EXPECT_EQ(failing(with(std::make_shared<LeavesOneOutOf>(of_norm))),
            (Names{"AllFeaturesGiveTheSameBitsEachTimeAndOnAnyLanes", "SyncBatchNormIsOneDevices"}));
}

TEST(BrokenVariables, LargeParametersThatTrainLocally) {
  EXPECT_EQ(failing(with(nullptr, nullptr, std::make_shared<TrainsLargeOnesLocally>())),
            Names{"ParametersOfAnySizeAndNameTrainAlike"});
}

TEST(BrokenGradients, LargeOnesAreFoundByClipping) {
  const Names found = failing(with(std::make_shared<CutsLargeSums>()));
  EXPECT_TRUE(found.contains("ClippingIsOneDevices"));
  EXPECT_FALSE(found.contains("ParameterGroupsAreOneDevices"));
}

TEST(BrokenGradients, AveragedOnesAreFoundWithGroupsAndAccumulation) {
  const Names found = failing(with(std::make_shared<Averages>()));
  for (const char* name : {"ParameterGroupsAreOneDevices", "AccumulationIsOneDevices", "SyncBatchNormIsOneDevices"}) {
    EXPECT_TRUE(found.contains(name)) << name;
  }
}

TEST(BrokenMetrics, AreFound) {
  EXPECT_TRUE(failing(with(std::make_shared<ForgetsTheLastDouble>())).contains("MetricsAreOneDevices"));
}

TEST(BrokenReducer, WhoseHistoryDecidesIsFoundByALoadedState) {
  Conformance conformance = with(nullptr, nullptr, nullptr);
  conformance.make = [](int64_t replicas, int lanes, uint64_t seed) {
    return std::make_unique<Mine>(
        StrategySetup{.name = "Mine",
                      .topology = std::make_shared<HostTopology>(testing::lanes(lanes), replicas),
                      .reducer = std::make_shared<TurnsAround>(),
                      .seed = seed});
  };
  EXPECT_TRUE(failing(conformance).contains("OptimizerStateIsLoaded"));
}

}  // namespace
}  // namespace lockstep
