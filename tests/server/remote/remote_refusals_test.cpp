// Tasks that do not run the same program as the chief.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/core/process/exit_codes.h"
#include "lockstep/data/dataset.h"
#include "lockstep/server/parameter_server.h"
#include "tests/server/remote/remote_tasks.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_all_ended_well;
using testing::run_tasks;

TEST(RemoteRun, ATaskWithAnotherProgramIsRefusedWithBothSidesShown) {
  const auto results = run_tasks(2, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .timeouts = {.join = std::chrono::seconds(3)}});
    const bool is_other = spec.job == "worker" && spec.task == 1;
    const Variable weight = strategy.make_variable(torch::zeros({is_other ? 3 : 2}), {.name = "weight"});
    return strategy.coordinate([](Coordinator&) {});
  });
  for (const std::size_t task : {0, 2}) {
    EXPECT_NE(results[task].error.find("variable 'weight' Float [3]"), std::string::npos) << results[task].error;
    EXPECT_NE(results[task].error.find("variable 'weight' Float [2]"), std::string::npos) << results[task].error;
  }
  EXPECT_NE(results[0].error.find("have not joined the chief in 3 s: worker 1"), std::string::npos) << results[0].error;
  for (const std::size_t task : {1, 3}) {
    EXPECT_NE(results[task].error.find("worker 1"), std::string::npos) << results[task].error;
  }
}

TEST(RemoteRun, ATaskWithAnotherRuleIsRefusedWithBothSidesShown) {
  const auto results = run_tasks(1, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .timeouts = {.join = std::chrono::seconds(3)}});
    const std::vector weights{strategy.make_variable(torch::zeros({2}), {.name = "weight"})};
    const Optimizer optimizer = spec.job == "ps" ? strategy.make_optimizer(weights, torch::optim::AdamWOptions(0.1))
                                                 : strategy.make_optimizer(weights, torch::optim::SGDOptions(0.1));
    return strategy.coordinate([](Coordinator&) {});
  });
  for (const char* const part :
       {"AdamW with the slots exp_avg and exp_avg_sq of 1 variable", "SGD with no slots of 1 variable"}) {
    EXPECT_NE(results[0].error.find(part), std::string::npos) << results[0].error;
    EXPECT_NE(results[2].error.find(part), std::string::npos) << results[2].error;
  }
}

TEST(RemoteRun, ATaskWithAnotherWireIsRefusedWithBothSidesShown) {
  const auto results = run_tasks(1, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec,
                                      .timeouts = {.join = std::chrono::seconds(3)},
                                      .wire = spec.job == "worker" ? WireFormat::kBFloat16 : WireFormat::kExact});
    return strategy.coordinate([](Coordinator&) {});
  });
  for (const char* const part : {"wire bfloat16", "wire exact"}) {
    EXPECT_NE(results[0].error.find(part), std::string::npos) << results[0].error;
    EXPECT_NE(results[1].error.find(part), std::string::npos) << results[1].error;
  }
}

/// A server whose optimizer or table was made otherwise than the chief's is refused, and both texts are shown.
void expect_server_refused(const std::function<void(ParameterServerStrategy&, bool)>& make, const char* there,
                           const char* here) {
  const auto results = run_tasks(1, 1, [&](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .timeouts = {.join = std::chrono::seconds(3)}});
    make(strategy, spec.job == "ps");
    return strategy.coordinate([](Coordinator&) {});
  });
  for (const char* const part : {there, here}) {
    EXPECT_NE(results[2].error.find(part), std::string::npos) << results[2].error;
  }
}

TEST(RemoteRun, AServerWithOtherSlotsIsRefused) {
  std::vector<Optimizer> optimizers;
  std::mutex mutex;
  expect_server_refused(
      [&](ParameterServerStrategy& strategy, bool is_server) {
        const std::vector weights{strategy.make_variable(torch::zeros({2}), {.name = "weight"})};
        const auto one =
            strategy.make_optimizer(weights, torch::optim::SGDOptions(0.1).momentum(is_server ? 0.9 : 0.0));
        const std::lock_guard<std::mutex> lock(mutex);
        optimizers.push_back(one);
      },
      "SGD with the slots momentum", "SGD with no slots");
}

TEST(RemoteRun, AServerWhoseTableHasOtherSlotsIsRefused) {
  std::vector<RowsOptimizer> optimizers;
  std::vector<Embedding> tables;
  std::mutex mutex;
  expect_server_refused(
      [&](ParameterServerStrategy& strategy, bool is_server) {
        const auto table = strategy.make_embedding({.name = "users", .rows = 10, .dim = 1});
        const auto one = strategy.make_optimizer(table, torch::optim::SGDOptions(0.1).momentum(is_server ? 0.9 : 0.0));
        const std::lock_guard<std::mutex> lock(mutex);
        tables.push_back(table);
        optimizers.push_back(one);
      },
      "slots [momentum_buffer]", "slots []");
}

TEST(RemoteRun, AServerWithAnotherScheduleIsRefused) {
  std::vector<Optimizer> optimizers;
  std::mutex mutex;
  expect_server_refused(
      [&](ParameterServerStrategy& strategy, bool is_server) {
        const std::vector weights{strategy.make_variable(torch::zeros({2}), {.name = "weight"})};
        const auto one = strategy.make_optimizer(weights, torch::optim::SGDOptions(0.1));
        one.set_schedule([=](int64_t step) { return is_server && step > 9 ? 0.5 : 0.1; });
        const std::lock_guard<std::mutex> lock(mutex);
        optimizers.push_back(one);
      },
      "0.1 0.1 0.1 0.5", "0.1 0.1 0.1 0.1");
}

/// A worker's data set differs from the chief's: `make` is called with whether it is that worker.
void expect_data_refused(const std::function<DistributedDataset(ParameterServerStrategy&, bool)>& make,
                         const char* there, const char* here) {
  const auto results = run_tasks(2, 1, [&](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .timeouts = {.join = std::chrono::seconds(3)}});
    const DistributedDataset data = make(strategy, spec.job == "worker" && spec.task == 1);
    return strategy.coordinate([](Coordinator&) {});
  });
  for (const std::size_t task : {0, 2}) {
    const std::string& error = results[task].error;
    for (const char* const part : {"worker 1", "data set 0", there, here, task == 2 ? "LS-CLUSTER-DIFFERS" : ""})
      EXPECT_NE(error.find(part), std::string::npos) << error;
  }
}

TEST(RemoteRun, AWorkerWithAnotherBatchSizeIsRefused) {
  expect_data_refused(
      [](ParameterServerStrategy& strategy, bool is_other) {
        return strategy.distribute(data::from_tensors(torch::ones({12, 1}), torch::zeros({12})),
                                   {.global_batch = is_other ? 6 : 4});
      },
      ".global_batch = 6", ".global_batch = 4");
}

TEST(RemoteRun, AWorkerWithOtherDataIsRefused) {
  expect_data_refused(
      [](ParameterServerStrategy& strategy, bool is_other) {
        const int64_t samples = is_other ? 11 : 12;
        return strategy.distribute(data::from_tensors(torch::ones({samples, 1}), torch::zeros({samples})),
                                   {.global_batch = 4, .name = "train"});
      },
      "11 samples", "12 samples");
}

TEST(RemoteRun, WhoTakesNoBatchesNeedsNoData) {
  expect_all_ended_well(run_tasks(1, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec});
    const auto distribute = [&](int64_t batch) {
      return strategy.distribute(data::from_tensors(torch::ones({12, 1}), torch::zeros({12})), {.global_batch = batch});
    };
    DistributedDataset train;
    DistributedDataset extra;
    if (spec.job != "ps") train = distribute(4);
    if (spec.job == "chief") extra = distribute(3);
    const auto size = strategy.step("size", [&](WorkerContext& ctx) { return train.next(ctx).size(); });
    DistributedDataset inside;
    for (int i = 0; i < 2; ++i) {
      const int code = strategy.coordinate([&](Coordinator& coordinator) {
        EXPECT_EQ(coordinator.schedule(size).get(), 4);
        inside = distribute(2);
      });
      if (code != 0) return code;
    }
    return 0;
  }));
}

TEST(RemoteRun, ATaskWithAnotherSecretIsNotWorthAnotherStart) {
  std::atomic<int> code = 0;
  const auto results = run_tasks(1, 1, [&](const ClusterSpec& spec) {
    ClusterSpec mine = spec;
    if (spec.job == "worker") mine.secret = Secret("another secret of the test");
    ParameterServerStrategy strategy({.cluster = mine, .timeouts = {.join = std::chrono::seconds(3)}});
    try {
      return strategy.coordinate([](Coordinator&) {});
    } catch (const std::exception& error) {
      if (spec.job == "worker") code = static_cast<int>(exit_code_of(error));
      throw;
    }
  });
  EXPECT_EQ(code, static_cast<int>(ExitCode::kConfiguration));
  EXPECT_NE(results[1].error.find("LS-CLUSTER-DIFFERS"), std::string::npos) << results[1].error;
  EXPECT_NE(results[1].error.find("worker 0"), std::string::npos) << results[1].error;
  EXPECT_NE(results[0].error.find("worker 0"), std::string::npos) << results[0].error;
}

}  // namespace
}  // namespace lockstep
