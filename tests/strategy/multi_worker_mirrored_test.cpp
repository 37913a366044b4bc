// MultiWorkerMirroredStrategy in processes: the bits of MirroredStrategy on any number of workers, who is who, and what
// is said where workers do not fit together.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/errors.h"
#include "tests/support/free_port.h"
#include "tests/support/programs.h"
#include "tests/support/worker_processes.h"

namespace lockstep {
namespace {

using testing::report;
using testing::Report;
using testing::WorkerProcesses;
using Environment = WorkerProcesses::Environment;

/// Trains a model with dropout and batch norm, and gives a digest of weights, slots and components of all replicas.
std::string trained(Strategy& strategy) {
  const auto model = strategy.make_module([] { return testing::make_program("cnn"); });
  Optimizer optimizer = testing::make_optimizer(strategy, model, "adamw");
  const auto data =
      strategy.distribute(testing::make_data("cnn", 30), {.global_batch = 11, .shuffle = true, .seed = 3});
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(model(ctx)->loss(part.input, part.target)).backward();
        optimizer.step(ctx, {.clip_global_norm = 1});
      });
    }
  }
  std::vector<std::pair<std::string, torch::Tensor>> named;
  for (const auto& [name, value] : model.state()) named.emplace_back(name, value);
  for (const auto& [name, value] : optimizer.state()) named.emplace_back("optimizer " + name, value);
  return sha256_of(named);
}

/// A number that the test gives to the workers, or nothing.
int64_t given(const char* name, int64_t otherwise = 0) {
  const char* value = std::getenv(name);
  return value ? std::stoll(value) : otherwise;
}

MultiWorkerMirroredOptions options() {
  std::vector<std::string> devices;
  for (int64_t lane = 0; lane < given("LANES", 1); ++lane) devices.push_back("cpu:" + std::to_string(lane));
  const char* engine = std::getenv("ENGINE");
  return {.devices = devices,
          .replicas = given("REPLICAS"),
          .seed = static_cast<uint64_t>(given("SEED")),
          .verify_every = 2,
          .engine = engine ? engine : "auto",
          .timeouts = {.join = std::chrono::seconds(60)}};
}

WORKER_BODY(train_by_multi_worker) {
  try {
    MultiWorkerMirroredStrategy strategy(options());
    report("trained " + trained(strategy));
  } catch (const std::exception& error) {
    report(std::string("failed: ") + error.what());
  }
}

WORKER_BODY(say_who_they_are) {
  MultiWorkerMirroredStrategy strategy(options());
  report("I am " + std::to_string(strategy.worker_index()) + " of " + std::to_string(strategy.num_workers()) +
         (strategy.is_chief() ? ", chief" : "") + ", " + std::to_string(strategy.num_replicas()) + " replicas from " +
         std::to_string(strategy.per_replica([](ReplicaId r) { return r.value(); }).begin()[0]));
  report(strategy.describe());
}

Environment job(int64_t worker, int64_t workers, uint16_t port) {
  return {{"LOCKSTEP_NUM_WORKERS", std::to_string(workers)},
          {"LOCKSTEP_WORKER_INDEX", std::to_string(worker)},
          {"LOCKSTEP_CHIEF_ADDRESS", "127.0.0.1:" + std::to_string(port)},
          {"LOCKSTEP_JOB_ID", "multi-worker-test-" + std::to_string(getpid())},
          {"LOCKSTEP_SECRET", "a secret of the test"}};
}

/// Starts workers of one job, each with `more(w)` in its environment.
std::unique_ptr<WorkerProcesses> start(const std::string& body, int64_t workers,
                                       const std::function<Environment(int64_t)>& more) {
  const uint16_t port = testing::free_port();
  return std::make_unique<WorkerProcesses>(body, workers, [&](int64_t w) {
    Environment all = job(w, workers, port);
    all.merge(more(w));
    return all;
  });
}

std::string bits_of_mirrored(int64_t replicas) {
  MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = replicas});
  return "trained " + trained(strategy);
}

struct Placed {
  int64_t replicas, workers, lanes;
  const char* engine;
};

TEST(MultiWorkerMirrored, HasTheBitsOfMirroredOnAnyWorkersAndLanes) {
  std::map<int64_t, std::string> expected;
  for (const Placed& one :
       {Placed{8, 2, 2, "shared-memory"}, Placed{8, 3, 1, "tcp"}, Placed{7, 2, 2, "tls"}, Placed{4, 4, 1, "auto"}}) {
    if (expected[one.replicas].empty()) expected[one.replicas] = bits_of_mirrored(one.replicas);
    const auto workers = start("train_by_multi_worker", one.workers, [&](int64_t) {
      return Environment{
          {"REPLICAS", std::to_string(one.replicas)}, {"LANES", std::to_string(one.lanes)}, {"ENGINE", one.engine}};
    });
    for (const Report& found : workers->expect_all("", std::chrono::seconds(180))) {
      EXPECT_EQ(found.text, expected[one.replicas]) << one.replicas << " replicas on " << one.workers << " workers";
    }
  }
}

TEST(MultiWorkerMirrored, IsMirroredWhereItIsTheOnlyWorker) {
  MultiWorkerMirroredStrategy strategy({.cluster = ClusterSpec{}, .devices = {"cpu:0", "cpu:1"}, .replicas = 4});
  EXPECT_EQ(strategy.name(), "MultiWorkerMirroredStrategy");
  EXPECT_EQ(strategy.num_workers(), 1);
  EXPECT_TRUE(strategy.is_chief());
  EXPECT_EQ("trained " + trained(strategy), bits_of_mirrored(4));
  EXPECT_EQ(strategy.on_chief([] { return std::string("value"); }), "value");
}

TEST(MultiWorkerMirrored, SaysWhoEachWorkerIsAndWhatConnectsThem) {
  const auto workers = start("say_who_they_are", 3, [](int64_t) {
    return Environment{{"REPLICAS", "5"}, {"ENGINE", "tls"}};
  });
  const char* expected[] = {"I am 0 of 3, chief, 5 replicas from 0", "I am 1 of 3, 5 replicas from 2",
                            "I am 2 of 3, 5 replicas from 4"};
  for (int64_t w = 0; w < 3; ++w) {
    EXPECT_EQ(workers->expect(w, "I am").text, expected[w]);
    const std::string text = workers->expect(w, "MultiWorkerMirroredStrategy").text;
    EXPECT_NE(text.find("workers are connected by tls: every connection"), std::string::npos) << text;
  }
}

TEST(MultiWorkerMirrored, TakesALaneOfEachWorkerForAReplicaWhereNoneWereAskedFor) {
  const auto workers = start("say_who_they_are", 2, [](int64_t) { return Environment{{"LANES", "2"}}; });
  EXPECT_EQ(workers->expect(0, "I am").text, "I am 0 of 2, chief, 4 replicas from 0");
  EXPECT_EQ(workers->expect(1, "I am").text, "I am 1 of 2, 4 replicas from 2");
}

TEST(MultiWorkerMirrored, NamesBothSidesWhereOptionsDiffer) {
  for (const auto& [name, shown] : {std::pair("SEED", "seed 1"), std::pair("REPLICAS", "replicas 6")}) {
    const auto workers = start("train_by_multi_worker", 2, [&, name = name](int64_t w) {
      Environment more{{"REPLICAS", "4"}};
      more[name] = w == 0 ? "4" : "1";
      if (std::string(name) == "REPLICAS") more[name] = w == 0 ? "4" : "6";
      return more;
    });
    for (const Report& found : workers->expect_all("", std::chrono::seconds(60))) {
      EXPECT_EQ(found.text.rfind("failed: ", 0), 0u) << found.text;
      EXPECT_NE(found.text.find(shown), std::string::npos) << found.text;
      EXPECT_NE(found.text.find("worker 1"), std::string::npos) << found.text;
    }
  }
}

TEST(MultiWorkerMirrored, RefusesAnEngineThatDoesNotExistBeforeItWaits) {
  ClusterSpec cluster;
  cluster.jobs["worker"] = {"127.0.0.1:1", "127.0.0.1:2"};
  cluster.job = "worker";
  testing::expect_error<UsageError>(
      [&] { MultiWorkerMirroredStrategy({.cluster = cluster, .devices = {"cpu:0"}, .engine = "carrier pigeon"}); },
      "LS-OPTION", {"carrier pigeon"});
}

}  // namespace
}  // namespace lockstep
