// The conformance suite on workers that are processes: each runs all checks, and meets the others in each of them.
#include <gtest/gtest.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/join/join.h"
#include "lockstep/testing/conformance.h"
#include "lockstep/testing/local_replicas.h"
#include "tests/support/free_port.h"
#include "tests/support/worker_processes.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::OneOfSeveral;
using testing::report;
using testing::WorkerProcesses;

std::string setting(const char* name) {
  const char* const text = std::getenv(name);
  if (!text) throw std::runtime_error(std::string(name) + " is not set");
  return text;
}

/// The worlds of this worker's strategies: each is a job of its own, whose port the chief finds.
class Worlds {
 public:
  Worlds() : all_(join(of_job("all", setting("PORT")), {.engine = "shared-memory"})) {}

  std::shared_ptr<World> next() {
    const std::string port = all_->worker_index() == 0 ? std::to_string(testing::free_port()) : "";
    const std::string chief_port = all_->agree(port).front();
    return join(of_job(std::to_string(++made_), chief_port), {.engine = setting("ENGINE")});
  }

 private:
  static ClusterSpec of_job(const std::string& name, const std::string& chief_port) {
    ClusterSpec cluster{.task = testing::my_worker_index()};
    cluster.jobs["worker"].resize(std::stoul(setting("WORKERS")));
    cluster.jobs["worker"][0] = "127.0.0.1:" + chief_port;
    cluster.job_id = setting("JOB") + "-" + name;
    cluster.secret = Secret("a secret of the test");
    return cluster;
  }

  const std::shared_ptr<World> all_;
  int64_t made_ = 0;
};

std::unique_ptr<Strategy> alone(int64_t replicas, int lanes, uint64_t seed) {
  return std::make_unique<testing::LocalReplicas>(
      testing::LocalReplicasOptions{.replicas = replicas, .lanes = lanes, .seed = seed});
}

std::unique_ptr<Strategy> on_worker(std::shared_ptr<World> world, int64_t replicas, int lanes, uint64_t) {
  return std::make_unique<OneOfSeveral>(std::move(world), replicas, lanes, nullptr);
}

WORKER_BODY(conforms) {
  torch::set_num_threads(1);
  Worlds worlds;
  int64_t passed = 0;
  for (const auto& check :
       testing::conformance_checks({.make = alone,
       .replicas = {4},
       .lanes = {1},
       .make_on_worker = on_worker,
       .workers = {static_cast<int64_t>(std::stoul(setting("WORKERS")))},
       .process = testing::WorkerProcess{testing::my_worker_index(), [&] { return worlds.next(); }}})) {
    try {
      check.run();
    } catch (const std::exception& error) {
      throw std::runtime_error(check.name + ": " + error.what());  // the others cannot go on without this one
    }
    ++passed;
  }
  report("passed " + std::to_string(passed));
}

struct Job {
  const char* engine;
  int64_t workers;
};

std::string name_of(const Job& job) {
  const std::string engine = std::string(job.engine) == "tls" ? "tls" : "SharedMemory";
  return engine + "Of" + std::to_string(job.workers);
}
void PrintTo(const Job& job, std::ostream* stream) { *stream << name_of(job); }

class Processes : public ::testing::TestWithParam<Job> {};

TEST_P(Processes, Conform) {
  const Job& job = GetParam();
  WorkerProcesses workers("conforms", job.workers,
                          {{"ENGINE", job.engine},
                           {"WORKERS", std::to_string(job.workers)},
                           {"PORT", std::to_string(testing::free_port())},
                           {"JOB", "conformance-test-" + std::to_string(getpid())}});
  const auto all = testing::conformance_checks({.make = alone, .replicas = {4}, .lanes = {1}, .more_replicas = {}});
  for (const auto& passed : workers.expect_all("passed ", std::chrono::seconds(300)))
    EXPECT_EQ(passed.text, "passed " + std::to_string(all.size()));
  for (int64_t w = 0; w < job.workers; ++w) EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
}

INSTANTIATE_TEST_SUITE_P(Engines, Processes,
                         ::testing::Values(Job{"shared-memory", 2}, Job{"shared-memory", 3}, Job{"shared-memory", 4},
                                           Job{"tls", 2}, Job{"tls", 3}),
                         [](const auto& one) { return name_of(one.param); });

}  // namespace
}  // namespace lockstep
