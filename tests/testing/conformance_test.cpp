// The conformance suite: every strategy of the library passes, in every shape, and a broken one is found and named.
#include "lockstep/testing/conformance.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <set>

#include "lockstep/testing/conformance/conformance_checks.h"
#include "lockstep/testing/local_replicas.h"
#include "tests/support/programs.h"

namespace lockstep {

namespace testing {

/// Prints a check, for parameterised tests.
static void PrintTo(const ConformanceCheck& check, std::ostream* stream) { *stream << check.name; }

}  // namespace testing

namespace {

using testing::Conformance;
using testing::conformance_checks;
using testing::ConformanceCheck;
using testing::expect_conformance;
using testing::message_from;
using torch::Tensor;

using MadeStrategy = std::unique_ptr<Strategy>;

MadeStrategy one_device(int64_t replicas, int lanes, uint64_t seed) {
  if (replicas != 1 || lanes != 1) return nullptr;
  return std::make_unique<OneDeviceStrategy>(OneDeviceOptions{.seed = seed});
}

template <Copies copies>
MadeStrategy mirrored(int64_t replicas, int lanes, uint64_t seed) {
  return std::make_unique<MirroredStrategy>(
      MirroredOptions{.devices = testing::lanes(lanes), .replicas = replicas, .copies = copies, .seed = seed});
}

MadeStrategy local_replicas(int64_t replicas, int lanes, uint64_t seed) {
  return std::make_unique<testing::LocalReplicas>(
      testing::LocalReplicasOptions{.replicas = replicas, .lanes = lanes, .seed = seed});
}

MadeStrategy central_storage(int64_t replicas, int lanes, uint64_t seed) {
  return std::make_unique<CentralStorageStrategy>(
      CentralStorageOptions{.devices = testing::lanes(lanes), .replicas = replicas, .seed = seed});
}

/// A strategy of one's own: each variable lies where the next lane is.
class RoundRobinPlacement final : public Placement {
 public:
  std::string describe() const override { return "one copy, on each device in turn"; }
  std::vector<VariableCopy> copies(const NewVariable& variable, const Lanes& lanes) const override {
    VariableCopy copy{lanes.devices[static_cast<std::size_t>(variable.index) % lanes.devices.size()], {}};
    for (int64_t r = 0; r < lanes.replicas; ++r) copy.replicas.push_back(r);
    return {copy};
  }
};

/// Another one: replicas train locally, and average after every third step.
class EveryThirdStep final : public Synchronization {
 public:
  std::string describe() const override { return "after every third step"; }
  bool trains_locally(const NewVariable& variable) const override { return variable.parameter && variable.trainable; }
  bool averages_after(int64_t steps) const override { return steps % 3 == 0; }
};

class OwnStrategy final : public Strategy {
 public:
  explicit OwnStrategy(StrategySetup setup) : Strategy(std::move(setup)) {}
};

MadeStrategy round_robin(int64_t replicas, int lanes, uint64_t seed) {
  return std::make_unique<OwnStrategy>(
      StrategySetup{.name = "RoundRobinStrategy",
                    .topology = std::make_shared<HostTopology>(testing::lanes(lanes), replicas),
                    .placement = std::make_shared<RoundRobinPlacement>(),
                    .seed = seed});
}

MadeStrategy local_sgd(int64_t replicas, int lanes, uint64_t seed) {
  return std::make_unique<OwnStrategy>(
      StrategySetup{.name = "LocalSgdStrategy",
                    .topology = std::make_shared<HostTopology>(testing::lanes(lanes), replicas),
                    .synchronization = std::make_shared<EveryThirdStep>(),
                    .seed = seed});
}

class Conforms : public ::testing::TestWithParam<ConformanceCheck> {};

TEST_P(Conforms, To) { GetParam().run(); }

const auto kName = [](const auto& one) { return one.param.name; };
INSTANTIATE_TEST_SUITE_P(OneDevice, Conforms, ::testing::ValuesIn(conformance_checks({.make = one_device})), kName);
INSTANTIATE_TEST_SUITE_P(Mirrored, Conforms,
                         ::testing::ValuesIn(conformance_checks({.make = mirrored<Copies::kPerMemory>})), kName);
INSTANTIATE_TEST_SUITE_P(MirroredWithCopies, Conforms,
                         ::testing::ValuesIn(conformance_checks({.make = mirrored<Copies::kPerReplica>})), kName);
INSTANTIATE_TEST_SUITE_P(CentralStorage, Conforms, ::testing::ValuesIn(conformance_checks({.make = central_storage})),
                         kName);
INSTANTIATE_TEST_SUITE_P(RoundRobin, Conforms, ::testing::ValuesIn(conformance_checks({.make = round_robin})), kName);
INSTANTIATE_TEST_SUITE_P(LocalSgd, Conforms,
                         ::testing::ValuesIn(conformance_checks({.make = local_sgd, .one_gradient_rule = false})),
                         kName);
INSTANTIATE_TEST_SUITE_P(
    LocalReplicas, Conforms,
    ::testing::ValuesIn(conformance_checks({.make = local_replicas, .replicas = {2, 8}, .lanes = {1, 4, 8}})), kName);

MadeStrategy on_worker(std::shared_ptr<World> world, int64_t replicas, int lanes, uint64_t seed) {
  return std::make_unique<OwnStrategy>(
      StrategySetup{.name = "OneOfSeveral",
                    .topology = std::make_shared<HostTopology>(testing::lanes(lanes), replicas, /*pinned=*/false),
                    .world = std::move(world),
                    .seed = seed});
}
INSTANTIATE_TEST_SUITE_P(SeveralWorkers, Conforms,
                         ::testing::ValuesIn(conformance_checks({.make = local_replicas,
                                                                 .replicas = {3, 4},
                                                                 .more_replicas = {},
                                                                 .make_on_worker = on_worker})),
                         kName);

std::vector<std::string> names_of(const Conformance& conformance) {
  std::vector<std::string> names;
  for (const ConformanceCheck& check : conformance_checks(conformance)) names.push_back(check.name);
  return names;
}

/// The text of the DivergenceError of a whole suite; it has all of `parts`.
void expect_found(const Conformance& conformance, const std::vector<std::string>& parts) {
  const std::string text = message_from<DivergenceError>([&] { expect_conformance(conformance); });
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n  in: " << text;
}

TEST(Conformance, HasEachCheckOnEachShapeUnderANameThatTestsCanHave) {
  const auto names = names_of({.make = local_replicas});
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const std::string& name : names) {
    for (const char c : name) EXPECT_TRUE(std::isalnum(static_cast<unsigned char>(c)) || c == '_') << name;
  }
  for (const char* shape : {"_1ReplicaOn1Lane", "_3ReplicasOn1Lane", "_4ReplicasOn1Lane", "_4ReplicasOn2Lanes"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), std::string("ReduceIsOfEveryReplicasValueOnce") + shape), 1);
  }
  const auto shapes = std::count_if(names.begin(), names.end(), [](const std::string& name) {
    return name.starts_with("HasTheShapeThatWasAskedFor_");
  });
  EXPECT_EQ(static_cast<std::ptrdiff_t>(names.size() - 12) % shapes, 0)
      << "all checks on each shape, and one of each of 5 to 16 replicas";
  for (const char* name :
       {"ValuesOfSoManyReplicasBecomeOne_5ReplicasOn1Lane", "ValuesOfSoManyReplicasBecomeOne_16ReplicasOn1Lane"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
}

TEST(Conformance, LeavesOutShapesThatAStrategyDoesNotHaveAndRefusesNone) {
  for (const std::string& name : names_of({.make = one_device})) {
    EXPECT_NE(name.find("_1ReplicaOn1Lane"), std::string::npos) << name;
  }
  for (const Conformance& none : {Conformance{}, Conformance{.make = one_device, .replicas = {2}},
                                  Conformance{.make = local_replicas, .replicas = {3}, .lanes = {4, 0, -1}},
                                  Conformance{.make = local_replicas, .replicas = {}}}) {
    testing::expect_error<UsageError>([&] { conformance_checks(none); }, "LS-OPTION");
    testing::expect_error<UsageError>([&] { expect_conformance(none); }, "LS-OPTION");
  }
  EXPECT_THROW(expect_conformance({.make = [](int64_t, int, uint64_t) -> MadeStrategy { throw std::bad_alloc(); }}),
               std::bad_alloc);
}

TEST(Conformance, LeavesTheOneGradientRuleToStrategiesThatPromiseIt) {
  const auto with = names_of({.make = local_replicas, .replicas = {4}, .lanes = {1}});
  const auto without = names_of({.make = local_replicas, .replicas = {4}, .lanes = {1}, .one_gradient_rule = false});
  EXPECT_EQ(with.size(), without.size() + 11);
}

TEST(Conformance, NamesAStrategyThatTrainsApartAndPromisesNotTo) {
  expect_found({.make = local_sgd, .replicas = {4}, .lanes = {2}, .more_replicas = {}},
               {"\n  TrainingWithSgdIsOneDevices_4ReplicasOn2Lanes: 4 replicas on 2 lanes: after step ",
                "\n  TrainingWithAdamWIsOneDevices_4ReplicasOn2Lanes", ".one_gradient_rule = false"});
}

TEST(Conformance, IsSilentOnAStrategyThatIsOne) { expect_conformance({.make = local_replicas, .replicas = {2}}); }

TEST(Conformance, LeavesOutFurtherNumbersThatAStrategyRefusesOrDoesNotHave) {
  const auto two = [](int64_t replicas, int lanes, uint64_t seed) -> MadeStrategy {
    if (replicas == 5) throw UsageError("LS-TEST", std::string("not five"), "two");
    return replicas == 6 ? nullptr : local_replicas(2, lanes, seed);
  };
  for (const std::string& name : names_of({.make = two, .replicas = {2}, .lanes = {1}})) {
    EXPECT_NE(name.find("_2ReplicasOn1Lane"), std::string::npos) << name;
  }
}

TEST(Conformance, NamesTheShapeThatIsNotTheOneAskedFor) {
  const auto too_few = [](int64_t replicas, int lanes, uint64_t seed) {
    return local_replicas(std::max<int64_t>(replicas - lanes, lanes), lanes, seed);
  };
  expect_found(
      {.make = too_few, .replicas = {4}, .lanes = {2}, .more_replicas = {}},
      {"HasTheShapeThatWasAskedFor_4ReplicasOn2Lanes: LocalReplicas of 4 replicas on 2 lanes: num_replicas() is "
       "2, expected 4",
       "Topology"});
}

TEST(Conformance, NamesAStrategyThatIsAnotherEachTime) {
  uint64_t calls = 0;
  const auto drifting = [&calls](int64_t replicas, int lanes, uint64_t) {
    return local_replicas(replicas, lanes, ++calls);
  };
  expect_found({.make = drifting, .replicas = {3}, .lanes = {1}, .more_replicas = {}},
               {"HasTheShapeThatWasAskedFor_3ReplicasOn1Lane: LocalReplicas of 3 replicas on 1 lane: seed() is",
                "TrainingGivesTheSameBitsEachTimeAndOnAnyLanes_3ReplicasOn1Lane",
                "before the first step, variable "
                "'model.hidden.weight' differs",
                "its arguments", "begin with the first"});
}

TEST(Conformance, NamesALaneCountThatDecidesBits) {
  const auto by_lanes = [](int64_t replicas, int lanes, uint64_t seed) {
    return local_replicas(replicas, lanes, seed + static_cast<uint64_t>(lanes == 2));
  };
  const std::string text = message_from<DivergenceError>([&] {
    expect_conformance({.make = by_lanes, .replicas = {4}, .lanes = {1, 2}, .more_replicas = {}});
  });
  EXPECT_NE(text.find("TrainingGivesTheSameBitsEachTimeAndOnAnyLanes_4ReplicasOn2Lanes"), std::string::npos) << text;
  EXPECT_EQ(text.find("_4ReplicasOn1Lane:"), std::string::npos) << text;
}

// The words with which checks speak.
TEST(Findings, SayWhatWasFoundAndWhatWasExpected) {
  using internal::Finding;
  EXPECT_EQ(message_from<Finding>([] { internal::expect_equal("the count", 2, 3); }), "the count is 2, expected 3");
  EXPECT_EQ(message_from<Finding>([] { internal::expect_tensor("x", torch::ones({2}), torch::full({2}, 1.5)); }),
            "x is Float [2] {1, 1}, expected Float [2] {1.5, 1.5}");
  EXPECT_EQ(
      message_from<Finding>([] { internal::expect_tensor("x", torch::arange(9), torch::arange(9, torch::kDouble)); }),
      "x is Long [9] {0, 1, 2, 3, 4, 5, 6, 7, ...}, expected Double [9] {0, 1, 2, 3, 4, 5, 6, 7, ...}");
  message_from<Finding>([] { internal::expect_bits("x", torch::zeros({1}), -torch::zeros({1})); });
  message_from<Finding>([] { internal::expect_close("x", torch::ones({1}) * 1.0001, torch::ones({1})); });
  internal::expect_tensor("x", torch::full({1}, NAN), torch::full({1}, NAN));
  internal::expect_close("x", torch::full({1}, 1.0000001F), torch::ones({1}));

  EXPECT_EQ(message_from<Finding>([] { internal::expect_usage_error("it", [] {}); }),
            "it threw nothing, expected a UsageError");
  EXPECT_EQ(message_from<Finding>([] { internal::expect_usage_error("it", [] { throw std::runtime_error("mine"); }); }),
            "it threw 'mine', expected a UsageError");
  EXPECT_EQ(
      message_from<Finding>([] {
        internal::expect_usage_error("it", [] { throw UsageError("LS-TEST", std::string("a"), "b"); }, {"a", "c"});
      }),
      "it threw 'a [LS-TEST]\nb', which does not name 'c'");
}

}  // namespace
}  // namespace lockstep
