// Values of other dtypes, and the modes under which a call outside of steps computes.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using torch::Tensor;
using enum VariableAggregation;

class Conversions : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(1), .replicas = 2}};

  void refused(at::ScalarType type, const Tensor& value) {
    const Variable v = strategy_.make_variable(torch::ones({1}, type), {.name = "v", .aggregation = kSum});
    const auto one = torch::ones({1}, type);
    expect_error<UsageError>([&] { v.assign(value); }, "LS-DTYPE", {"'v'"});
    expect_error<UsageError>([&] { v.assign_add(value); }, "LS-DTYPE", {"'v'"});
    testing::expect_step_error<UsageError>([&] { strategy_.run([&](ReplicaContext& ctx) { v.assign(ctx, value); }); },
                                           "LS-DTYPE", {"'v'"});
    EXPECT_TRUE(torch::equal(v.read(), one)) << c10::toString(type) << value;
  }
  void taken(at::ScalarType type, const Tensor& value) {
    const Variable v = strategy_.make_variable(torch::ones({1}, type), {.name = "v"});
    v.assign(value);
    EXPECT_TRUE(torch::equal(v.read(), value.to(type)) || torch::isnan(v.read()).all().item<bool>())
        << c10::toString(type) << value << v.read();
  }
  static Tensor whole(int64_t value, at::ScalarType type = torch::kLong) { return torch::full({1}, value, type); }
  static Tensor real(double value, at::ScalarType type = torch::kDouble) { return torch::full({1}, value, type); }
};

TEST_F(Conversions, IntegersThatDoNotFitAreRefused) {
  refused(torch::kByte, whole(300));
  refused(torch::kByte, whole(256, torch::kInt));
  refused(torch::kByte, whole(-1));
  refused(torch::kByte, whole(-1, torch::kChar));
  refused(torch::kChar, whole(200, torch::kByte));
  refused(torch::kChar, whole(-129, torch::kShort));
  refused(torch::kInt, whole(10'000'000'000));
  refused(torch::kInt, whole(int64_t{1} << 31));
  taken(torch::kByte, whole(255));
  taken(torch::kByte, whole(0));
  taken(torch::kChar, whole(-128));
  taken(torch::kInt, whole(-(int64_t{1} << 31)));
  taken(torch::kInt, whole((int64_t{1} << 31) - 1));
  taken(torch::kLong, whole(200, torch::kByte));
}

TEST_F(Conversions, RealNumbersThatAreNoIntegersOfTheDtypeAreRefused) {
  refused(torch::kInt, real(3e9, torch::kFloat));
  refused(torch::kInt, real(-2147483649.0));
  refused(torch::kInt, real(2147483648.0));
  refused(torch::kLong, real(9223372036854775808.0));
  refused(torch::kByte, real(-1));
  refused(torch::kByte, real(256));
  for (const at::ScalarType type : {torch::kByte, torch::kInt, torch::kLong}) {
    for (const double bad : {0.5, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN(), 1e30}) {
      refused(type, real(bad));
      refused(type, real(bad, torch::kFloat));
    }
  }
  taken(torch::kInt, real(-2147483648.0));
  taken(torch::kLong, real(-9223372036854775808.0));
  taken(torch::kByte, real(-0.0));
  taken(torch::kByte, real(255, torch::kFloat));
}

TEST_F(Conversions, AFiniteNumberDoesNotBecomeInfiniteButMayLosePrecision) {
  refused(torch::kFloat, real(1e39));
  refused(torch::kFloat, real(-1e39));
  refused(torch::kHalf, real(70000, torch::kFloat));
  refused(torch::kHalf, whole(70000));
  refused(torch::kComplexFloat, torch::complex(real(0), real(1e39)));
  taken(torch::kFloat, real(0.1));
  taken(torch::kFloat, real(1e-300));
  taken(torch::kFloat, real(std::numeric_limits<double>::infinity()));
  taken(torch::kFloat, real(std::numeric_limits<double>::quiet_NaN()));
  taken(torch::kHalf, real(65504));
  taken(torch::kBFloat16, real(1e38, torch::kFloat));
  taken(torch::kFloat, whole(std::numeric_limits<int64_t>::max()));
  taken(torch::kComplexFloat, real(0.1));
}

TEST_F(Conversions, ALoadNamesThemAndChangesNothing) {
  const auto model = strategy_.make_module([] {
    auto module = std::make_shared<torch::nn::Module>();
    module->register_parameter("weight", torch::ones({2}));
    module->register_buffer("count", torch::ones({1}, torch::kByte));
    return module;
  });
  const std::map<std::string, Tensor> bad{{"count", whole(300)}, {"weight", torch::zeros({2})}};
  expect_error<UsageError>([&] { model.load(bad); }, "LS-STATE-MISFIT", {"'count'"});
  EXPECT_TRUE(torch::equal(model.state().at("weight"), torch::ones({2})));
  EXPECT_EQ(model.state().at("count").item<int64_t>(), 1);
}

TEST_F(Conversions, ALoadWhileAnAverageStandsInForSomeChangesNothing) {
  const auto model = strategy_.make_module([] { return torch::nn::Linear(2, 2); });
  const auto average = strategy_.make_moving_average(std::vector<Variable>{model.variables()[1]});
  auto state = model.state();
  const auto before = state;
  for (auto& [name, value] : state) value = value + 1;
  {
    const auto scope = average.swap();
    expect_error<UsageError>([&] { model.load(state); }, "LS-AVERAGE-SWAPPED", {"'model.bias'"});
    expect_error<UsageError>([&] { strategy_.update(model.variables()[0], [&](Tensor&) { model.load(state); }); },
                             "LS-NESTED-CALL");
  }
  for (const auto& [name, value] : model.state()) EXPECT_TRUE(torch::equal(value, before.at(name))) << name;
  model.load(state);
}

/// The dtype of that name, or nothing where this LibTorch has none.
std::optional<at::ScalarType> dtype_named(const std::string& name) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto type = static_cast<at::ScalarType>(i);
    if (c10::toString(type) == name) return type;
  }
  return std::nullopt;
}

class DtypesByName : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!dtype_named(GetParam())) GTEST_SKIP() << "this LibTorch has no " << GetParam();
    type_ = *dtype_named(GetParam());
  }
  Tensor one() const { return torch::ones({1}).to(type_); }

  MirroredStrategy strategy_{{.devices = lanes(1), .replicas = 2}};
  at::ScalarType type_ = at::kFloat;
};

class DtypesWithoutInfinity : public DtypesByName {};

TEST_P(DtypesWithoutInfinity, TakeNoNumberBeyondTheirLargest) {
  const std::map<std::string, double> all{
      {"Float8_e4m3fn", 448}, {"Float8_e4m3fnuz", 240}, {"Float8_e5m2fnuz", 57344}, {"Float8_e8m0fnu", 0x1p127}};
  const double largest = all.at(GetParam());
  const bool has_sign = largest < 1e6;
  const Variable v = strategy_.make_variable(one(), {.name = "v"});
  const auto value = [&] { return v.read().to(torch::kDouble).item<double>(); };
  const auto refused = [&](const Tensor& given) {
    expect_error<UsageError>([&] { v.assign(given); }, "LS-DTYPE", {"'v'", GetParam()});
  };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double given : {largest * 1.25, largest * 1e6, infinity, -largest * 1.25, -infinity}) {
    refused(torch::full({1}, given, torch::kDouble));
    refused(torch::full({1}, given, torch::kDouble).to(torch::kFloat));
  }
  if (has_sign) refused(torch::full({1}, 1'000'000, torch::kLong));
  EXPECT_EQ(value(), 1);
  v.assign(torch::full({1}, largest, torch::kDouble));
  EXPECT_EQ(value(), largest);
  v.assign(torch::full({1}, 1.0625));
  EXPECT_EQ(value(), 1) << "a loss of precision";
  v.assign(torch::full({1}, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_TRUE(std::isnan(value()));
  if (has_sign) {
    v.assign(torch::full({1}, -largest));
    EXPECT_EQ(value(), -largest);
  } else {
    refused(torch::full({1}, -1));
    refused(torch::zeros({1}));  // they would become 1 and 2^-127
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DtypesWithoutInfinity,
                         ::testing::Values("Float8_e4m3fn", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "Float8_e8m0fnu"),
                         [](const auto& test) { return std::string(test.param); });

class DtypesWithoutAddition : public DtypesByName {};

TEST_P(DtypesWithoutAddition, AreRefusedAsSumsAndMeansAtCreation) {
  using enum VariableSynchronization;
  for (const VariableSynchronization synchronization : {kOnWrite, kOnRead}) {
    for (const VariableAggregation aggregation : {kSum, kMean}) {
      expect_error<UsageError>(
          [&] {
            strategy_.make_variable(one(),
                                    {.name = "v", .synchronization = synchronization, .aggregation = aggregation});
          },
          "LS-DTYPE", {"'v'", GetParam(), aggregation == kSum ? "kSum" : "kMean"});
    }
  }
  EXPECT_TRUE(strategy_.variables().empty());
}

TEST_P(DtypesWithoutAddition, AreAssignedAndNotAddedTo) {
  using enum VariableSynchronization;
  for (const VariableSynchronization synchronization : {kOnWrite, kOnRead}) {
    const Variable v = strategy_.make_variable(
        one(), {.name = "v", .synchronization = synchronization, .aggregation = kOnlyFirstReplica});
    const auto expect_refused = [&](const std::function<void()>& call) {
      expect_error<UsageError>(call, "LS-DTYPE", {"'v'", GetParam()});
    };
    expect_refused([&] { v.assign_add(one()); });
    expect_refused([&] { v.assign_sub(one()); });
    expect_refused([&] { v.assign_add(strategy_.per_replica([&](ReplicaId) { return one(); })); });
    expect_refused([&] { strategy_.update(v, [&](Tensor&) { v.assign_sub(one()); }); });
    const auto add = [&](ReplicaContext& ctx) { v.assign_add(ctx, one()); };
    testing::expect_step_error<UsageError>([&] { strategy_.run(add); }, "LS-DTYPE", {"'v'", GetParam()});
    EXPECT_EQ(v.read().to(torch::kDouble).item<double>(), 1);
    strategy_.run([&](ReplicaContext& ctx) { v.assign(ctx, torch::full({1}, 2)); });
    EXPECT_EQ(v.read().to(torch::kDouble).item<double>(), 2);
  }
}

TEST_P(DtypesWithoutAddition, AreBuffersOfWhichAReadGivesTheFirstReplicas) {
  const auto model = strategy_.make_module([&] {
    auto module = std::make_shared<torch::nn::Module>();
    module->register_buffer("scale", one());
    return module;
  });
  EXPECT_EQ(model.variables()[0].aggregation(), kOnlyFirstReplica);
  strategy_.run(
      [&](ReplicaContext& ctx) { model.variables()[0].assign(ctx, torch::full({1}, ctx.replica_id() == 0 ? 2 : 4)); });
  EXPECT_EQ(model.state().at("scale").to(torch::kDouble).item<double>(), 2);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DtypesWithoutAddition,
                         ::testing::Values("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz",
                                           "Float8_e8m0fnu", "UInt16", "UInt32", "UInt64"),
                         [](const auto& test) { return std::string(test.param); });

/// Whether the calling thread flushes denormal numbers, for the length of a scope.
class Flush {
 public:
  explicit Flush(bool on) { at::globalContext().setFlushDenormal(on); }
  ~Flush() { at::globalContext().setFlushDenormal(false); }
};

// The smallest normal number halved is denormal: it stands only where these are kept.
TEST(CallsOutsideOfSteps, ComputeUnderTheStrategysDenormalModeWhateverTheCallers) {
  const Tensor half = torch::full({2}, std::numeric_limits<float>::min() / 2);
  const Tensor minus_half = -half;
  const Tensor tiny = torch::full({2}, std::numeric_limits<float>::min());
  for (const Denormals denormals : {Denormals::kKeep, Denormals::kFlush}) {
    std::vector<Tensor> results;
    for (const bool callers : {false, true}) {
      MirroredStrategy strategy({.devices = lanes(1), .replicas = 2, .denormals = denormals});
      const Variable mirrored = strategy.make_variable(tiny);
      const Variable mean =
          strategy.make_variable(tiny, {.synchronization = VariableSynchronization::kOnRead, .aggregation = kMean});
      const Variable sum =
          strategy.make_variable(tiny, {.synchronization = VariableSynchronization::kOnRead, .aggregation = kSum});
      const PerReplica<Tensor> differing(std::vector<Tensor>{tiny, minus_half});
      const PerReplica<Tensor> halves(std::vector<Tensor>{torch::zeros({2}), tiny});
      const Flush flush(callers);
      mirrored.assign_sub(half);
      sum.assign(differing);
      mean.assign(halves);
      const Variable updated = strategy.make_variable(tiny);
      strategy.update(updated, [&](Tensor& value) { value.sub_(half); });
      for (const Variable& v : {mirrored, mean, sum, updated}) results.push_back(v.read());
    }
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(std::memcmp(results[i].data_ptr(), results[i + 4].data_ptr(), 8), 0)
          << "call " << i << ", denormals " << (denormals == Denormals::kKeep ? "kept" : "flushed");
    }
    if (denormals == Denormals::kKeep) {
      EXPECT_GT(results[0][0].item<float>(), 0) << "or nothing was tried";
    }
  }
}

}  // namespace
}  // namespace lockstep
