// Slots of which each worker has its slices alone: what cannot be done, and what goes wrong on one worker, changes
// nothing and is named.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/linear/own_strategies.h"
#include "tests/support/host_update.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::run_workers;
using testing::SlotsAre;
using testing::WavyNet;

TEST(SlicedSlotsFails, RefuseToBeReadUntilTheyAreGathered) {
  const SlotsAre sliced("sliced");
  run_workers({2, 4}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    const Variable slot = net.optimizer.slots().front();
    const auto refused = [&](const std::function<void()>& call) {
      expect_error<UsageError>(call, "LS-SLOT-SLICED", {"'" + slot.name() + "'", "gather_slots"});
    };
    refused([&] { (void)slot.read(); });
    refused([&] { (void)slot.components(); });
    for (const StateItem& item : strategy.state_items()) {
      if (item.name != slot.name()) continue;
      refused([&] { (void)item.read(); });
      refused([&] { (void)item.view(); });
    }
    testing::expect_step_error<UsageError>([&] { strategy.run([&](ReplicaContext& ctx) { (void)slot.value(ctx); }); },
                                           "LS-SLOT-SLICED", {slot.name()});
    refused([&] { slot.assign_add(torch::ones({90, 70})); });
    refused([&] { strategy.update(slot, [](torch::Tensor& value) { value.mul_(2); }); });
    refused([&] { strategy.make_moving_average({slot}); });
    net.optimizer.gather_slots();
    const torch::Tensor value = slot.read();
    EXPECT_GT(value.abs().min().item<float>(), 0) << "all of it";
    slot.assign_add(torch::zeros({90, 70}));
    net.optimizer.gather_slots();
    EXPECT_TRUE(torch::equal(slot.read(), value));
    const MovingAverage average = strategy.make_moving_average({slot});
    net.step(strategy);
    refused([&] { (void)slot.read(); });
    refused([&] { const auto swapped = average.swap(); });
    return 0;
  });
}

TEST(SlicedSlotsFails, AreRefusedWhereWorkersCannotDivideAnUpdate) {
  const SlotsAre sliced("sliced");
  run_workers({2, 4}, [](Strategy& strategy) {
    const Variable half = strategy.make_variable(torch::ones({5}, torch::kBFloat16), {.name = "half"});
    expect_error<UsageError>([&] { strategy.make_optimizer({half}, torch::optim::SGDOptions(0.5)); }, "LS-UPDATE-FORM",
                             {"'half' is BFloat16", "sliced"});
    return 0;
  });
  run_workers(
      {2, 4},
      [](Strategy& strategy) {
        expect_error<UsageError>([&] { const WavyNet net(strategy); }, "LS-UPDATE-FORM", {"reducer", "sliced"});
        return 0;
      },
      std::make_shared<testing::OwnReducer>());
  for (const bool rounds : {false, true}) {
    ThreadWorkers workers(2, std::chrono::seconds(60));
    std::vector<std::thread> threads;
    for (int64_t w = 0; w < 2; ++w) {
      threads.emplace_back([&, world = workers.world(w)] {
        const StrategySetup setup{.name = "Custom",
                                  .world = world,
                                  .update_form = rounds ? UpdateForm::kAuto : UpdateForm::kHostMemory,
                                  .wire = rounds ? WireFormat::kBFloat16 : WireFormat::kExact,
                                  .slots = Slots::kSliced};
        expect_error<UsageError>([&] { testing::Custom strategy(setup); }, "LS-OPTION",
                                 {"sliced slots", rounds ? "bfloat16" : "host memory"});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(SlicedSlotsFails, ThatDifferBetweenWorkersAreNamedOnAllAsFormsOfTheirUpdateAre) {
  for (const bool by_form : {false, true}) {
    ThreadWorkers workers(2, std::chrono::seconds(60));
    std::vector<std::thread> threads;
    for (int64_t w = 0; w < 2; ++w) {
      threads.emplace_back([&, w, world = workers.world(w)] {
        const StrategySetup setup{.name = "Custom",
                                  .topology = std::make_shared<HostTopology>(testing::lanes(1), 2, false),
                                  .world = world,
                                  .update_form = by_form && w == 0 ? UpdateForm::kSums : UpdateForm::kAuto,
                                  .slots = !by_form && w == 0 ? Slots::kWhole : Slots::kSliced};
        expect_error<UsageError>([&] { testing::Custom strategy(setup); }, "LS-WORKER-ORDER",
                                 {"worker 0", "worker 1", "slots are sliced", "form auto"});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(SlicedSlotsFails, RefuseAnotherWordInTheEnvironmentAndANumberWithoutAName) {
  const SlotsAre wrong("thin");
  expect_error<UsageError>([] { MirroredStrategy strategy({.devices = {"cpu:0"}}); }, "LS-ENVIRONMENT",
                           {"LOCKSTEP_SLOTS", "thin"});
  const SlotsAre unset("");
  expect_error<UsageError>([] { MultiWorkerMirroredStrategy({.slots = static_cast<Slots>(9)}); }, "LS-OPTION",
                           {".slots is 9"});
}

TEST(SlicedSlotsFails, StayWithTheWeightsWhereAStepIsSkipped) {
  const SlotsAre sliced("sliced");
  run_workers({2, 4}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    const auto skip = [&] {
      const std::string before = net.digest();
      strategy.run([&](ReplicaContext& ctx) {
        (net.loss(ctx) * (ctx.replica_id() == 3 ? NAN : 1.0)).backward();
        EXPECT_FALSE(net.optimizer.step(ctx, {.skip_non_finite = true}).applied);
      });
      EXPECT_EQ(net.digest(), before);
    };
    skip();  // no step has sent new weights yet
    net.step(strategy);
    net.a.assign(torch::ones({90, 70}));
    net.optimizer.slots()[0].assign(torch::ones({90, 70}));
    skip();  // those that the last step has sent are not the weights
    return 0;
  });
}

TEST(SlicedSlotsFails, StopAllWorkersAtAForeignWriteOnOneOfThem) {
  const SlotsAre sliced("sliced");
  for (const int64_t element : {0, 90 * 70 - 1}) {  // in a slice of the other worker, and in an own one
    run_workers({2, 4}, [&](Strategy& strategy) {
      const WavyNet net(strategy);
      net.step(strategy);
      const std::string before = sha256_of({{"c", net.c.read()}, {"b", net.b.read()}});
      const std::string message = testing::message_from<ReplicaError>([&] {
        strategy.run([&](ReplicaContext& ctx) {
          if (ctx.replica_id() == 3) net.a.value(ctx).data_ptr<float>()[element] = 7;
          net.loss(ctx).backward();
          net.optimizer.step(ctx);
        });
      });
      for (const char* text : {"LS-FOREIGN-WRITE", "variable 'a'"})
        EXPECT_NE(message.find(text), std::string::npos) << text << " in " << message;
      EXPECT_EQ(sha256_of({{"c", net.c.read()}, {"b", net.b.read()}}), before) << "the step was applied in part";
      net.a.assign(torch::ones({90, 70}));  // sound again
      net.step(strategy);
      return 0;
    });
  }
}

TEST(SlicedSlotsFails, NameSlotsThatWereNotWrittenAlikeOnAllWorkers) {
  const SlotsAre sliced("sliced");
  run_workers({3, 6}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    const std::string slot = net.optimizer.slots()[1].name();
    // What is restored is not compared at once.
    const auto write = [&](float value) {
      for (const StateItem& item : strategy.state_items()) {
        if (item.name == slot) item.write({torch::full({90, 70}, value)});
      }
    };
    if (strategy.worker_index() == 1) write(0.5);
    testing::expect_step_error<DivergenceError>([&] { net.step(strategy); }, "LS-DIVERGED",
                                                {slot, "written on worker 1 and not on worker 0"});
    expect_error<UsageError>([&] { net.optimizer.gather_slots(); }, "LS-WORKER-ORDER",
                             {"of whose 6 slots 0 are whole here", "of whose 6 slots 1 are whole here"});
    write(strategy.worker_index() == 2 ? 0.5f : 0.25f);
    testing::expect_step_error<DivergenceError>([&] { net.step(strategy); }, "LS-DIVERGED", {slot, "worker 2"});
    write(0.25);
    net.step(strategy);
    expect_error<UsageError>([&] { (void)net.optimizer.slots()[1].read(); }, "LS-SLOT-SLICED", {slot});
    return 0;
  });
}

TEST(SlicedSlotsFails, NameWeightsAndCountsThatDifferBetweenWorkers) {
  const SlotsAre sliced("sliced");
  run_workers({3, 6}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    // What is restored is not compared at once.
    for (const StateItem& item : strategy.state_items()) {
      if (item.name == "b") item.write({torch::full({9}, strategy.worker_index() == 1 ? 1.0f : 0.0f)});
    }
    testing::expect_step_error<DivergenceError>([&] { net.step(strategy); }, "LS-DIVERGED", {"'b'", "worker 1"});
    net.b.assign(torch::ones({9}));
    net.step(strategy);
    for (const StateItem& item : strategy.state_items()) {
      if (item.name == "a/step" && strategy.worker_index() == 1) item.write({torch::tensor(int64_t{100})});
    }
    testing::expect_step_error<UsageError>([&] { net.step(strategy); }, "LS-WORKER-ORDER", {"2 to 2", "2 to 100"});
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
