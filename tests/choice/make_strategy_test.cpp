// Strategies by name.
#include "lockstep/choice/make_strategy.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/train/trainer.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;

TEST(MakeStrategy, GivesOneDeviceTheDeviceOfItsOwnOptions) {
  EXPECT_TRUE(testing::has_value(make_strategy("one-device", {.device = "cpu:1"})->describe(), "cpu:1"));
  expect_error<UsageError>([] { make_strategy("one-device", {.devices = lanes(1), .device = "cpu:1"}); }, "LS-OPTION",
                           {"2 devices"});
  expect_error<UsageError>([] { make_strategy("mirrored", {.device = "cpu:1"}); }, "LS-OPTION", {".device"});
}

TEST(MakeStrategy, GivesParameterServersTheirOptions) {
  const auto strategy = make_strategy("parameter-server", {.seed = 7, .staleness = 0, .workers = 3, .servers = 2});
  auto* const servers = dynamic_cast<ParameterServerStrategy*>(strategy.get());
  ASSERT_NE(servers, nullptr);
  EXPECT_EQ(servers->num_workers(), 3);
  EXPECT_EQ(servers->seed(), 7);
  EXPECT_EQ(strategy->num_replicas(), 3) << "in step each worker is a replica";
  const auto by_replicas = make_strategy("parameter-server", {.replicas = 4});
  EXPECT_EQ(dynamic_cast<ParameterServerStrategy&>(*by_replicas).num_workers(), 4);
}

TEST(MakeStrategy, RefusesOptionsOfServersForReplicasAndTheOtherWayRound) {
  const auto refused = [](const char* name, const StrategyOptions& options, const char* option) {
    expect_error<UsageError>([&] { make_strategy(name, options); }, "LS-OPTION", {name, option});
  };
  for (const char* name : {"one-device", "mirrored", "multi-worker", "central-storage"}) {
    refused(name, {.partitioner = fixed_shards_partitioner(2)}, ".partitioner");
    refused(name, {.placement = ServerPlacement::kByBytes}, ".placement");
    refused(name, {.staleness = 0}, ".staleness");
    refused(name, {.record = "run.record"}, ".record");
    refused(name, {.workers = 2}, ".workers");
    refused(name, {.servers = 1}, ".servers");
    refused(name, {.queue = {.steps = 5}}, ".queue");
    refused(name, {.attempts = 5}, ".attempts");
    refused(name, {.timeouts = {.step = std::chrono::seconds(1)}}, ".timeouts.step");
  }
  refused("parameter-server", {.devices = lanes(2)}, ".devices");
  refused("parameter-server", {.copies = Copies::kPerReplica}, ".copies");
  refused("parameter-server", {.verify_every = 1}, ".verify_every");
  refused("parameter-server", {.storage = "cpu:1"}, ".storage");
  refused("mirrored", {.engine = "tcp"}, ".engine");
  refused("parameter-server", {.factored_gradients = FactoredGradients::kOff}, ".factored_gradients");
  refused("parameter-server", {.tuning = {.verify_every = 1}}, ".tuning.verify_every");
  refused("parameter-server", {.replicas = 2, .workers = 3}, ".workers");
  expect_error<UsageError>([] { make_strategy("parameter-server", {.workers = 0}); }, "LS-OPTION", {".workers is 0"});
  expect_error<UsageError>([] { make_strategy("parameter-server", {.engine = "shared-memory"}); }, "LS-OPTION",
                           {".engine is 'shared-memory'"});
}

TEST(MakeStrategy, GivesParameterServersWhatBoundsAndRoundsTheirSteps) {
  const auto refused = [](const StrategyOptions& options, const char* code, const char* part) {
    expect_error<UsageError>([&] { make_strategy("parameter-server", options); }, code, {part});
  };
  refused({.queue = {.steps = 0}}, "LS-OPTION", "steps = 0");
  refused({.queue = {.bytes = -1}}, "LS-OPTION", "bytes = -1");
  refused({.attempts = -1}, "LS-OPTION", ".attempts = -1");
  refused({.timeouts = {.step = std::chrono::milliseconds(-1)}}, "LS-OPTION", ".step");
  refused({.wire = WireFormat::kBFloat16, .staleness = 0}, "LS-OPTION", "kBFloat16");
  refused({.device = "cuda:0"}, "LS-DEVICE", "'cuda:0'");
  EXPECT_NO_THROW(make_strategy("parameter-server", {.timeouts = {.step = std::chrono::seconds(9)},
                                                     .wire = WireFormat::kBFloat16,
                                                     .device = "cpu",
                                                     .queue = {.steps = 10, .bytes = 100},
                                                     .attempts = 0}));
}

/// A program that chooses its strategy at run time trains by a Trainer under each of them.
TEST(MakeStrategy, GivesAStrategyThatATrainerTrainsWhateverItIs) {
  std::optional<at::Tensor> expected;
  for (const std::string& name : strategy_names()) {
    if (name == "one-device") continue;
    StrategyOptions options{.replicas = 2, .seed = 7};
    if (name == "parameter-server") options.staleness = 0;
    const auto strategy = make_strategy(name, options);
    const auto model = strategy->make_module([] { return torch::nn::Linear(3, 1); });
    const auto optimizer = strategy->make_optimizer(model, torch::optim::SGDOptions(0.1));
    const auto x = torch::arange(24).to(torch::kFloat).sin().view({8, 3});
    const auto data = strategy->distribute(data::from_tensors(x, x.sum(1, true)), {.global_batch = 4});
    Trainer trainer(*strategy, model, optimizer, {.loss = [](const at::Tensor& output, const Batch& batch) {
      return torch::mse_loss(output, batch.target);
    }});
    trainer.fit(data, {.epochs = 2});
    const at::Tensor weight = model.variables().front().read();
    if (!expected) expected = weight;
    EXPECT_TRUE(torch::equal(weight, *expected)) << name;
  }
}

}  // namespace
}  // namespace lockstep
