// Workers of one host that share one copy of weights and slots: what goes wrong on one of them changes nothing.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/host_update.h"

namespace lockstep {
namespace {

using testing::expect_same_in_all_forms;
using testing::is_shared;
using testing::run_workers;
using testing::WavyNet;

TEST(HostUpdateFails, KeepsWhatACompletedStepHasWrittenInARunThatFailsAfterIt) {
  expect_same_in_all_forms([](Strategy& strategy) {
    const WavyNet net(strategy);
    std::vector<std::string> found;
    for (const bool writes_before : {false, true}) {
      net.step(strategy);
      (void)testing::error_from<ReplicaError>([&] {
        strategy.run([&](ReplicaContext& ctx) {
          if (writes_before) ctx.merge_call([&](Strategy&) { net.b.assign(torch::ones({9})); });
          net.loss(ctx).backward();
          net.optimizer.step(ctx);
          ctx.merge_call([&](Strategy&) { net.a.assign(torch::ones({90, 70})); });
          if (ctx.replica_id() == 3) throw std::runtime_error("after the step");
        });
      });
      found.push_back(net.digest());
    }
    net.step(strategy);
    found.push_back(net.digest());
    return found;
  });
}

TEST(HostUpdateFails, ChangesNothingWhereAReplicaFailsBeforeTheStep) {
  run_workers({3, 6, 2}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    const std::string before = net.digest();
    for (const int64_t failing : {0, 5}) {
      (void)testing::error_from<ReplicaError>([&] {
        strategy.run([&](ReplicaContext& ctx) {
          net.loss(ctx).backward();
          if (ctx.replica_id() == failing) throw std::runtime_error("before the step");
          net.optimizer.step(ctx);
        });
      });
      EXPECT_EQ(net.digest(), before);
    }
    net.step(strategy);
    EXPECT_NE(net.digest(), before);
    return 0;
  });
}

TEST(HostUpdateFails, NamesGradientsThatAreNotFiniteOnAllWorkersAndChangesNothing) {
  const auto program = [](Strategy& strategy, bool infinite_sum) {
    const WavyNet net(strategy);
    net.step(strategy);
    const std::string before = net.digest();
    const auto error = testing::error_from<ReplicaError>([&] {
      strategy.run([&](ReplicaContext& ctx) {
        auto loss = net.loss(ctx);
        // Either one replica's gradient is NaN; or all are finite and their sum is not, in one worker's blocks alone.
        if (infinite_sum) loss = loss + (net.a.value(ctx)[0].sum() * 3e38f).to(torch::kDouble);
        if (!infinite_sum && ctx.replica_id() == 3) loss = loss * NAN;
        loss.backward();
        net.optimizer.step(ctx, {.check_finite = true});
      });
    });
    if (infinite_sum) {
      testing::expect_error<NonFiniteError>([&] { std::rethrow_if_nested(error); }, "LS-NOT-FINITE", {"'a'", "sum"});
    } else {
      testing::expect_error<NonFiniteError>([&] { std::rethrow_if_nested(error); }, "LS-NOT-FINITE",
                                            {"'a' on replica 3 (worker 1)", "step 1"});
    }
    EXPECT_EQ(net.digest(), before);
    net.step(strategy);
    EXPECT_NE(net.digest(), before);
    return 0;
  };
  for (const char* slots : {"whole", "sliced"}) {
    const testing::SlotsAre scope(slots);
    for (const bool infinite_sum : {false, true})
      run_workers({2, 4}, [&](Strategy& strategy) { return program(strategy, infinite_sum); });
  }
}

TEST(HostUpdateFails, SkipsAnUpdateOnAllWorkersWhereOneReplicasGradientIsNotFinite) {
  for (const char* form : {"auto", "off"}) {
    const testing::HostMemoryIs scope(form);
    run_workers({2, 4}, [](Strategy& strategy) {
      const WavyNet net(strategy);
      net.step(strategy);
      const std::string before = net.digest();
      strategy.run([&](ReplicaContext& ctx) {
        (net.loss(ctx) * (ctx.replica_id() == 3 ? NAN : 1.0)).backward();
        const StepInfo info = net.optimizer.step(ctx, {.clip_global_norm = 1, .skip_non_finite = true});
        EXPECT_FALSE(info.applied);
        EXPECT_TRUE(std::isnan(info.global_norm));
      });
      EXPECT_EQ(net.digest(), before);
      EXPECT_EQ(net.optimizer.state().at("a/step").item<int64_t>(), 1);
      net.step(strategy);
      EXPECT_NE(net.digest(), before);
      return 0;
    });
  }
}

TEST(HostUpdateFails, NamesAForeignWriteOfOneWorkerOnAllAndAppliesNothing) {
  for (const int64_t element : {0, 90 * 70 - 1}) {  // of the first and of the last worker's part
    run_workers({2, 4}, [&](Strategy& strategy) {
      testing::expect_foreign_write_is_named(strategy, 3, element, "0, 1, 2, 3");
      return 0;
    });
  }
}

TEST(HostUpdateFails, NamesValuesThatDifferBeforeTheyMeetInOneMemory) {
  run_workers({2, 4}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    // What is restored is not compared at once.
    for (const StateItem& item : strategy.state_items()) {
      if (item.name == "b") item.write({torch::full({9}, static_cast<float>(strategy.worker_index()))});
    }
    testing::expect_step_error<DivergenceError>([&] { net.step(strategy); }, "LS-DIVERGED", {"'b'", "worker 1"});
    net.b.assign(torch::ones({9}));
    net.step(strategy);
    return 0;
  });
}

TEST(HostUpdateFails, GoesOnWhereOneWorkerAloneHasRestoredTheValueThatAllHave) {
  const auto digests = run_workers({2, 4}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    for (const StateItem& item : strategy.state_items()) {
      if (item.name == "b" && strategy.worker_index() == 1) item.write({net.b.read()});
    }
    net.step(strategy);
    EXPECT_TRUE(is_shared(strategy));
    return net.digest();
  });
  EXPECT_EQ(digests[0], digests[1]);
}

TEST(HostUpdateFails, RefusesCountsOfStepsThatDiffer) {
  run_workers({2, 4}, [](Strategy& strategy) {
    const WavyNet net(strategy);
    net.step(strategy);
    const std::string before = net.digest();
    int64_t written = 0;
    for (const StateItem& item : strategy.state_items()) {
      if (item.name != "a/step" || strategy.worker_index() == 0) continue;
      item.write({torch::tensor(int64_t{100})});
      ++written;
    }
    EXPECT_EQ(written, strategy.worker_index());
    testing::expect_step_error<UsageError>([&] { net.step(strategy); }, "LS-WORKER-ORDER", {"1 to 1", "1 to 100"});
    EXPECT_EQ(net.digest(), before);
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
