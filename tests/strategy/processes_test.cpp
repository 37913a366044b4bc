// Workers that are processes, under each engine: the same training, the same bits, and a worker that dies is named.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/join/join.h"
#include "lockstep/core/log.h"
#include "lockstep/strategy/kinds/mirrored.h"
#include "tests/support/free_port.h"
#include "tests/support/hosts.h"
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
    const char* const throwing = std::getenv("THROWS");
    if (epoch == 1 && throwing && world->worker_index() == std::stoi(throwing)) throw std::runtime_error("no data");
  }
  std::vector<std::pair<std::string, torch::Tensor>> named;
  for (const auto& [name, value] : model.state()) named.emplace_back(name, value);
  for (const auto& [name, value] : optimizer.state()) named.emplace_back("optimizer " + name, value);
  return sha256_of(named);
}

/// By the engine of the test; "mixed" are two hosts, whose workers share memory.
std::shared_ptr<World> join_by_environment() {
  const std::string engine = std::getenv("ENGINE");
  const ClusterSpec cluster = resolve_cluster();
  if (engine != "mixed") return join(cluster, {.engine = engine});
  std::string hosts;
  for (int64_t w = 0; w < cluster.num_workers(); ++w) hosts += 2 * w < cluster.num_workers() ? '0' : '1';
  const std::string chief = cluster.chief_address();
  return testing::join_from_host({.hosts = hosts,
                                  .worker = cluster.worker_index(),
                                  .port = static_cast<uint16_t>(std::stoi(chief.substr(chief.find(':') + 1)))});
}

WORKER_BODY(trains) {
  torch::set_num_threads(1);
  const auto world = join_by_environment();
  report("digest " + train(world, 3));
}

WORKER_BODY(trains_until_failure) {
  torch::set_num_threads(1);
  try {
    train(join_by_environment(), 1'000'000);
  } catch (const Error& error) {
    report("failed: " + std::string(error.what()));
  }
}

/// Trains; the worker FAILS is killed in its step 5, or in a call after it, at the place PLACE.
WORKER_BODY(is_killed_in_training) {
  torch::set_num_threads(1);
  const std::string place = std::getenv("PLACE");
  const bool fails = std::to_string(testing::my_worker_index()) == std::getenv("FAILS");
  const auto die_at = [&](const char* where) {
    if (!fails || place != where) return;
    report("dies");
    std::raise(SIGKILL);
  };
  try {
    OneOfSeveral strategy(join_by_environment(), kReplicas, 1, nullptr);
    const Variable weight = strategy.make_variable(torch::ones({2000}), {.name = "weight"});
    const Optimizer optimizer = strategy.make_optimizer({weight}, torch::optim::SGDOptions(0.01));
    while (true) {
      const bool is_it = strategy.step() == 5;
      strategy.run([&](ReplicaContext& ctx) {
        torch::Tensor value = weight.value(ctx) * 2;
        if (is_it) die_at("forward");
        if (is_it) value.register_hook([&](const torch::Tensor&) { die_at("backward"); });
        value.sum().backward();
        if (is_it) {
          // While the others wait for the sum of this worker's gradient.
          ctx.merge_call([&](Strategy&) {
            die_at("optimizer");
            return 0;
          });
        }
        optimizer.step(ctx);
      });
      if (is_it) strategy.on_chief([&] { die_at("chief"); });
    }
  } catch (const Error& error) {
    const auto* peer = dynamic_cast<const PeerError*>(&error);
    try {
      std::rethrow_if_nested(error);
    } catch (const PeerError& nested) {
      report("failed: step " + std::to_string(nested.failed().step) + ", " + nested.what());
      return;
    }
    report("failed: step " + std::to_string(peer ? peer->failed().step : -2) + ", " + error.what());
  }
}

/// Makes a strategy without the World that its environment describes.
WORKER_BODY(trains_alone) {
  set_log_sink([](LogLevel, std::string_view line) { report("log: " + std::string(line)); });
  MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 1});
  MirroredStrategy another({.devices = {"cpu:0"}, .replicas = 1});
  report("made");
}

std::map<std::string, std::string> description(int64_t worker, int64_t workers, const std::string& engine,
                                               uint16_t port) {
  return {{"ENGINE", engine},
          {"LOCKSTEP_NUM_WORKERS", std::to_string(workers)},
          {"LOCKSTEP_WORKER_INDEX", std::to_string(worker)},
          {"LOCKSTEP_LOCAL_WORKER", std::to_string(worker)},
          {"LOCKSTEP_CHIEF_ADDRESS", "127.0.0.1:" + std::to_string(port)},
          {"LOCKSTEP_JOB_ID", "processes-test-" + std::to_string(getpid())},
          {"LOCKSTEP_SECRET", "a secret of the test"}};
}

class Processes : public ::testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<WorkerProcesses> start(const std::string& body, int64_t workers,
                                                const WorkerProcesses::Environment& more = {}) {
    const uint16_t port = testing::free_port();
    return std::make_unique<WorkerProcesses>(body, workers, [&](int64_t w) {
      WorkerProcesses::Environment environment = description(w, workers, GetParam(), port);
      environment.insert(more.begin(), more.end());
      return environment;
    });
  }
};

TEST_P(Processes, TrainWithTheBitsOfOne) {
  const std::string expected = "digest " + train(nullptr, 3);
  for (const int64_t count : GetParam() == "mixed" ? std::vector<int64_t>{3, 4} : std::vector<int64_t>{2, 3}) {
    const auto started = start("trains", count);
    WorkerProcesses& workers = *started;
    for (const Report& one : workers.expect_all("digest ", std::chrono::seconds(120))) EXPECT_EQ(one.text, expected);
    for (int64_t w = 0; w < count; ++w) EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
  }
}

TEST_P(Processes, NameAWorkerThatIsKilledInTheMiddleOfTraining) {
  for (const int64_t killed : {0, 1, 2}) {
    const auto started = start("trains_until_failure", 3);
    WorkerProcesses& workers = *started;
    workers.expect_all("in the middle", std::chrono::seconds(120));
    const testing::Time when = workers.signal(killed, SIGKILL);
    for (int64_t w = 0; w < 3; ++w) {
      if (w == killed) continue;
      const Report failed = workers.expect(w, "failed: ");
      const std::string name = "worker " + std::to_string(killed) + " (process " + std::to_string(workers.pid(killed));
      EXPECT_NE(failed.text.find(name), std::string::npos) << failed.text;
      EXPECT_NE(failed.text.find(") is gone"), std::string::npos) << failed.text;
      EXPECT_LT(failed.when - when, std::chrono::seconds(2));  // one second, and the step that it was in
      EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
    }
  }
}

TEST_P(Processes, NameAWorkerThatAnExceptionEndsBetweenSteps) {
  for (const int64_t throwing : {0, 1}) {
    const auto started = start("trains_until_failure", 3, {{"THROWS", std::to_string(throwing)}});
    WorkerProcesses& workers = *started;
    for (int64_t w = 0; w < 3; ++w) {
      if (w == throwing) continue;
      const Report failed = workers.expect(w, "failed: ", std::chrono::seconds(120));
      const std::string name =
          "worker " + std::to_string(throwing) + " (process " + std::to_string(workers.pid(throwing));
      EXPECT_NE(failed.text.find(name), std::string::npos) << failed.text;
      EXPECT_NE(failed.text.find("was ended by an exception"), std::string::npos) << failed.text;
    }
    EXPECT_EQ(workers.wait(throwing).code, 3);
    EXPECT_EQ(workers.output(throwing), "no data\n");
  }
}

TEST_P(Processes, NameAWorkerThatIsKilledAtAnyPlaceOfAStepWithItsStep) {
  int64_t fails = 0;
  for (const char* place : {"forward", "backward", "optimizer", "chief"}) {
    fails = std::string(place) == "chief" ? 0 : (fails + 1) % 3;
    const auto started = start("is_killed_in_training", 3, {{"PLACE", place}, {"FAILS", std::to_string(fails)}});
    WorkerProcesses& workers = *started;
    const Report dies = workers.expect(fails, "dies", std::chrono::seconds(120));
    const std::string name = "worker " + std::to_string(fails) + " (process " + std::to_string(workers.pid(fails));
    std::set<std::string> texts;
    for (int64_t w = 0; w < 3; ++w) {
      if (w == fails) continue;
      const Report failed = workers.expect(w, "failed: ");
      texts.insert(failed.text);
      EXPECT_NE(failed.text.find(name), std::string::npos) << place << ": " << failed.text;
      EXPECT_NE(failed.text.find(") is gone"), std::string::npos) << place << ": " << failed.text;
      // Over a network the step is that of the last heartbeat.
      if (GetParam() == "shared-memory") {
        // In a call it is how many steps are completed.
        const bool is_call = std::string(place) == "chief";
        EXPECT_TRUE(failed.text.starts_with(is_call ? "failed: step 6, " : "failed: step 5, ")) << failed.text;
        EXPECT_NE(failed.text.find(is_call ? "was at work in on_chief after 6 steps" : "step 5"), std::string::npos)
            << place << ": " << failed.text;
      }
      EXPECT_LT(failed.when - dies.when, std::chrono::seconds(2));
      EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
    }
    EXPECT_EQ(texts.size(), 1U) << *texts.begin() << " and " << *texts.rbegin();
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, Processes, ::testing::Values("shared-memory", "tls", "tcp", "mixed"),
                         [](const auto& one) { return one.param == "shared-memory" ? "SharedMemory" : one.param; });

TEST(ProcessesAlone, AreWarnedOnceWhereTheirEnvironmentDescribesOthers) {
  WorkerProcesses workers("trains_alone", 1, [&](int64_t) { return description(1, 4, "auto", 4000); });
  workers.expect(0, "made");
  int64_t warnings = 0;
  for (const Report& one : workers.reports(0)) {
    if (one.text.find("describes 4 workers") == std::string::npos) continue;
    ++warnings;
    EXPECT_NE(one.text.find("in this process trains alone"), std::string::npos) << one.text;
  }
  EXPECT_EQ(warnings, 1);
}

}  // namespace
}  // namespace lockstep
