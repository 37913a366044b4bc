// Workers that are processes of this host: the same training, the same bits, and a worker that dies is named.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/join.h"
#include "tests/support/worker_processes.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::OneOfSeveral;
using testing::report;
using testing::Report;
using testing::WorkerProcesses;

constexpr int64_t kReplicas = 6;

/// Trains for some epochs, or until it fails, and gives a digest of weights and slots.
std::string train(const std::shared_ptr<World>& world, int64_t epochs) {
  OneOfSeveral strategy(world, kReplicas, 1, nullptr);
  const auto model = strategy.make_module([] { return testing::make_program("mlp"); });
  Optimizer optimizer = testing::make_optimizer(strategy, model, "adamw");
  const auto data =
      strategy.distribute(testing::make_data("mlp", 50), {.global_batch = 16, .shuffle = true, .seed = 3});
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(model(ctx)->loss(part.input, part.target)).backward();
        optimizer.step(ctx, {.clip_global_norm = 1});
      });
    }
    if (epoch == 1 && strategy.num_workers() > 1) report("in the middle");
  }
  std::vector<std::pair<std::string, torch::Tensor>> named;
  for (const auto& [name, value] : model.state()) named.emplace_back(name, value);
  for (const auto& [name, value] : optimizer.state()) named.emplace_back("optimizer " + name, value);
  return sha256_of(named);
}

WORKER_BODY(trains) {
  torch::set_num_threads(1);
  const auto world = join(resolve_cluster());
  report("digest " + train(world, 3));
}

WORKER_BODY(trains_until_failure) {
  torch::set_num_threads(1);
  try {
    train(join(resolve_cluster()), 1'000'000);
  } catch (const Error& error) {
    report("failed: " + std::string(error.what()));
  }
}

std::map<std::string, std::string> description(int64_t worker, int64_t workers) {
  return {{"LOCKSTEP_NUM_WORKERS", std::to_string(workers)},
          {"LOCKSTEP_WORKER_INDEX", std::to_string(worker)},
          {"LOCKSTEP_LOCAL_WORKER", std::to_string(worker)},
          {"LOCKSTEP_CHIEF_ADDRESS", "127.0.0.1:4000"},  // no port is opened
          {"LOCKSTEP_JOB_ID", "processes-test-" + std::to_string(getpid())},
          {"LOCKSTEP_SECRET", "a secret of the test"}};
}

TEST(Processes, TrainWithTheBitsOfOne) {
  const std::string expected = "digest " + train(nullptr, 3);
  for (const int64_t count : {2, 3}) {
    WorkerProcesses workers("trains", count, [&](int64_t w) { return description(w, count); });
    for (const Report& one : workers.expect_all("digest ", std::chrono::seconds(120))) EXPECT_EQ(one.text, expected);
    for (int64_t w = 0; w < count; ++w) EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
  }
}

TEST(Processes, NameAWorkerThatIsKilledInTheMiddleOfTraining) {
  for (const int64_t killed : {0, 1, 2}) {
    WorkerProcesses workers("trains_until_failure", 3, [&](int64_t w) { return description(w, 3); });
    workers.expect_all("in the middle", std::chrono::seconds(120));
    const testing::Time when = workers.signal(killed, SIGKILL);
    for (int64_t w = 0; w < 3; ++w) {
      if (w == killed) continue;
      const Report failed = workers.expect(w, "failed: ");
      EXPECT_NE(failed.text.find("worker " + std::to_string(killed) + " (process " +
                                 std::to_string(workers.pid(killed)) + ") is gone"),
                std::string::npos)
          << failed.text;
      EXPECT_LT(failed.when - when, std::chrono::seconds(2));  // one second, and the step that it was in
      EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
    }
  }
}

}  // namespace
}  // namespace lockstep
