// The options of speed, given beside .tuning and in it: the same strategy either way.
#include "lockstep/strategy/tuning.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/variable/variable_state.h"
#include "tests/support/errors.h"
#include "tests/support/free_port.h"
#include "tests/support/layer.h"
#include "tests/support/programs.h"
#include "tests/support/worker_processes.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using testing::Layer;

/// What the strategy says of itself and of its variables, and the bits that two steps leave.
std::string told_and_trained(Strategy& strategy) {
  const Layer layer(strategy);
  for (int k = 0; k < 2; ++k) layer.step(strategy);
  return strategy.describe() + sha256_of({{"weight", layer.weight.read()}, {"bias", layer.bias.read()}});
}

/// After how many runs a write that is not the library's is found.
int64_t runs_until_found(Strategy& strategy) {
  const Variable v = strategy.make_variable(torch::zeros({4}), {.name = "v"});
  v.state().copies().front().data_ptr<float>()[0] = 1;
  for (int64_t runs = 1; runs <= 200; ++runs) {
    try {
      strategy.run([](ReplicaContext&) {});
    } catch (const ReplicaError& error) {
      EXPECT_TRUE(testing::has_value(error.what(), "LS-FOREIGN-WRITE")) << error.what();
      return runs;
    }
  }
  return 0;
}

std::unique_ptr<Strategy> mirrored(MirroredOptions options) {
  options.devices = lanes(2);
  options.replicas = 4;
  return std::make_unique<MirroredStrategy>(std::move(options));
}

std::unique_ptr<Strategy> by_name(const char* name, StrategyOptions options) {
  options.devices = lanes(1);
  return make_strategy(name, std::move(options));
}

TEST(Tuning, OfCopiesIsTheOptionOfThatName) {
  const std::string beside = told_and_trained(*mirrored({.copies = Copies::kPerReplica}));
  EXPECT_EQ(told_and_trained(*mirrored({.tuning = {.copies = Copies::kPerReplica}})), beside);
  EXPECT_NE(told_and_trained(*mirrored({})), beside) << "the option was not seen";
  EXPECT_NE(by_name("mirrored", {.tuning = {.copies = Copies::kPerReplica}})->describe(),
            by_name("mirrored", {})->describe());
}

TEST(Tuning, OfFactoredGradientsIsTheOptionOfThatName) {
  constexpr FactoredGradients kOff = FactoredGradients::kOff;
  const std::string beside = told_and_trained(*mirrored({.factored_gradients = kOff}));
  EXPECT_EQ(told_and_trained(*mirrored({.tuning = {.factored_gradients = kOff}})), beside);
  EXPECT_NE(told_and_trained(*mirrored({})), beside) << "the option was not seen";
  for (const char* name : {"one-device", "mirrored", "multi-worker", "central-storage"}) {
    const auto in_tuning = by_name(name, {.tuning = {.factored_gradients = kOff}});
    EXPECT_EQ(in_tuning->describe(), by_name(name, {.factored_gradients = kOff})->describe()) << name;
    EXPECT_NE(in_tuning->describe(), by_name(name, {})->describe()) << name;
  }
  EXPECT_EQ(OneDeviceStrategy({.tuning = {.factored_gradients = kOff}}).describe(),
            OneDeviceStrategy({.factored_gradients = kOff}).describe());
  EXPECT_EQ(CentralStorageStrategy({.replicas = 2, .tuning = {.factored_gradients = kOff}}).describe(),
            CentralStorageStrategy({.replicas = 2, .factored_gradients = kOff}).describe());
}

TEST(Tuning, OfVerificationsIsTheOptionOfThatName) {
  EXPECT_EQ(runs_until_found(*mirrored({.verify_every = 3})), 3);
  EXPECT_EQ(runs_until_found(*mirrored({.tuning = {.verify_every = 3}})), 3);
  OneDeviceStrategy one_device({.tuning = {.verify_every = 3}});
  EXPECT_EQ(runs_until_found(one_device), 3);
  CentralStorageStrategy central_storage({.tuning = {.verify_every = 3}});
  EXPECT_EQ(runs_until_found(central_storage), 3);
  MultiWorkerMirroredStrategy multi_worker({.cluster = ClusterSpec{}, .tuning = {.verify_every = 3}});
  EXPECT_EQ(runs_until_found(multi_worker), 3);
  EXPECT_EQ(runs_until_found(*by_name("mirrored", {.tuning = {.verify_every = 3}})), 3);
}

/// WAY is the options that the worker asks for.
WORKER_BODY(trains_with_a_tuning) {
  torch::set_num_threads(1);
  const std::string way = std::getenv("WAY");
  MultiWorkerMirroredOptions options{.devices = {"cpu:0"}, .replicas = 2, .engine = "shared-memory"};
  if (way == "sums beside") options.update_form = UpdateForm::kSums;
  if (way == "sums in .tuning") options.tuning.update_form = UpdateForm::kSums;
  if (way == "slices beside") options.slots = Slots::kSliced;
  if (way == "slices in .tuning") options.tuning.slots = Slots::kSliced;
  MultiWorkerMirroredStrategy strategy(options);
  testing::report(told_and_trained(strategy));
}

/// What worker 1 of two tells.
std::string told_by_a_worker(const std::string& way) {
  const uint16_t port = testing::free_port();
  testing::WorkerProcesses workers("trains_with_a_tuning", 2, [&](int64_t w) {
    return testing::WorkerProcesses::Environment{{"WAY", way},
                                                 {"LOCKSTEP_NUM_WORKERS", "2"},
                                                 {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
                                                 {"LOCKSTEP_LOCAL_WORKER", std::to_string(w)},
                                                 {"LOCKSTEP_CHIEF_ADDRESS", "127.0.0.1:" + std::to_string(port)},
                                                 {"LOCKSTEP_JOB_ID", "tuning-" + std::to_string(getpid())},
                                                 {"LOCKSTEP_SECRET", "a secret of the test"}};
  });
  return workers.expect_all("MultiWorkerMirroredStrategy", std::chrono::seconds(60))[1].text;
}

TEST(Tuning, OfSeveralWorkersIsTheOptionsOfThoseNames) {
  const std::string neither = told_by_a_worker("neither");
  const std::string digest = neither.substr(neither.size() - 64);
  for (const std::string option : {"sums", "slices"}) {
    const std::string beside = told_by_a_worker(option + " beside");
    EXPECT_EQ(told_by_a_worker(option + " in .tuning"), beside);
    EXPECT_NE(beside, neither) << option << ": the option was not seen";
    EXPECT_EQ(beside.substr(beside.size() - 64), digest) << option << " decide speed, and no bit";
  }
}

TEST(Tuning, IsRefusedWhereItAndTheOptionBesideItDiffer) {
  const auto refused = [](const std::function<void()>& make, const char* beside, const char* in_tuning) {
    expect_error<UsageError>(make, "LS-OPTION", {beside, in_tuning});
  };
  refused([] { mirrored({.copies = Copies::kPerReplica, .tuning = {.copies = Copies::kPerMemory}}); },
          ".copies = Copies::kPerReplica", ".tuning.copies = Copies::kPerMemory");
  refused([] { OneDeviceStrategy({.verify_every = 7, .tuning = {.verify_every = 0}}); }, ".verify_every = 7",
          ".tuning.verify_every = 0");
  refused(
      [] {
        CentralStorageStrategy({.factored_gradients = FactoredGradients::kOff,
                                .tuning = {.factored_gradients = FactoredGradients::kAuto}});
      },
      ".factored_gradients = FactoredGradients::kOff", ".tuning.factored_gradients = FactoredGradients::kAuto");
  refused(
      [] {
        MultiWorkerMirroredStrategy(
            {.update_form = UpdateForm::kSums, .tuning = {.update_form = UpdateForm::kFactors}});
      },
      ".update_form = UpdateForm::kSums", ".tuning.update_form = UpdateForm::kFactors");
  refused([] { MultiWorkerMirroredStrategy({.slots = Slots::kSliced, .tuning = {.slots = Slots::kWhole}}); },
          ".slots = Slots::kSliced", ".tuning.slots = Slots::kWhole");
  refused([] { make_strategy("mirrored", {.verify_every = 7, .tuning = {.verify_every = 8}}); }, ".verify_every = 7",
          ".tuning.verify_every = 8");
}

TEST(Tuning, MayBeGivenTwiceWithOneValue) {
  EXPECT_EQ(runs_until_found(*mirrored({.verify_every = 3, .tuning = {.verify_every = 3}})), 3);
}

TEST(Tuning, IsRefusedByAStrategyThatDoesNotHaveTheOption) {
  expect_error<UsageError>([] { mirrored({.tuning = {.update_form = UpdateForm::kSums}}); }, "LS-OPTION",
                           {"MirroredStrategy", ".tuning.update_form = UpdateForm::kSums"});
  expect_error<UsageError>([] { CentralStorageStrategy({.tuning = {.slots = Slots::kSliced}}); }, "LS-OPTION",
                           {"CentralStorageStrategy", ".tuning.slots = Slots::kSliced"});
  expect_error<UsageError>([] { OneDeviceStrategy({.tuning = {.copies = Copies::kPerReplica}}); }, "LS-OPTION",
                           {"OneDeviceStrategy", ".tuning.copies = Copies::kPerReplica"});
  expect_error<UsageError>([] { make_strategy("mirrored", {.tuning = {.slots = Slots::kSliced}}); }, "LS-OPTION",
                           {"mirrored", ".tuning.slots"});
  for (const char* name : {"one-device", "central-storage"}) {
    expect_error<UsageError>([&] { make_strategy(name, {.tuning = {.copies = Copies::kPerReplica}}); }, "LS-OPTION",
                             {name, ".tuning.copies"});
    expect_error<UsageError>([&] { make_strategy(name, {.copies = Copies::kPerReplica}); }, "LS-OPTION",
                             {name, ".copies"});
  }
  // What asks for what would be done anyway is no mistake.
  EXPECT_NO_THROW(mirrored({.tuning = {.update_form = UpdateForm::kAuto, .slots = Slots::kWhole}}));
}

TEST(Tuning, IsCheckedAsTheOptionOfThatName) {
  expect_error<UsageError>([] { mirrored({.tuning = {.copies = static_cast<Copies>(99)}}); }, "LS-OPTION",
                           {".copies is 99"});
  expect_error<UsageError>([] { mirrored({.copies = static_cast<Copies>(-1)}); }, "LS-OPTION", {".copies is -1"});
  expect_error<UsageError>(
      [] { OneDeviceStrategy({.tuning = {.factored_gradients = static_cast<FactoredGradients>(99)}}); }, "LS-OPTION",
      {".factored_gradients is 99"});
  expect_error<UsageError>([] { mirrored({.tuning = {.verify_every = -1}}); }, "LS-OPTION", {".verify_every is -1"});
  expect_error<UsageError>([] { MultiWorkerMirroredStrategy({.tuning = {.slots = static_cast<Slots>(9)}}); },
                           "LS-OPTION", {".slots is 9"});
}

}  // namespace
}  // namespace lockstep
