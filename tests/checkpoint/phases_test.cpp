// Workers that are killed while they save, restore or read their input: the others say what they were doing.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "lockstep/comm/join.h"
#include "lockstep/lockstep.h"
#include "tests/support/free_port.h"
#include "tests/support/worker_processes.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::OneOfSeveral;
using testing::report;
using testing::WorkerProcesses;

/// Ends worker 1 where this is the place of the test.
void die_at(const std::string& place) {
  if (testing::my_worker_index() == 1 && place == std::getenv("PLACE")) std::raise(SIGKILL);
}

/// Reads and makes two steps, saves, restores, and reads again.
WORKER_BODY(is_killed_beside_steps) {
  torch::set_num_threads(1);
  const fs::path folder = std::getenv("FOLDER");
  try {
    OneOfSeveral strategy(join(resolve_cluster(), {.engine = "shared-memory"}), 2, 1, nullptr);
    bool is_input = false;
    const auto samples = data::from_tensors(torch::zeros({8, 1}), torch::zeros({8})).map([&](Batch sample) {
      if (is_input) die_at("input");
      return sample;
    });
    const auto data = strategy.distribute(samples, {.global_batch = 2, .prefetch = 0});
    int step = 0;
    Checkpoint checkpoint(strategy);
    checkpoint.track(
        "value",
        [] {
          die_at("save");
          return std::string("7");
        },
        [](const std::string&) { die_at("restore"); });
    CheckpointManager manager(checkpoint, {.directory = folder, .async = false});
    for (const auto& batch : data.epoch(0)) {
      strategy.run(batch, [](ReplicaContext&, const Batch&) {});
      if (++step < 2) continue;
      manager.save();
      manager.restore_latest();
      is_input = true;
    }
  } catch (const PeerError& error) {
    report("step " + std::to_string(error.failed().step) + ", " + error.failed().phase);
  }
}

class WorkerPhasesBesideSteps : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(WorkerPhasesBesideSteps, AreToldOfAWorkerThatIsKilledInThem) {
  const auto [place, phase] = GetParam();
  const fs::path folder = fs::temp_directory_path() / ("lockstep-phases-" + std::to_string(getpid()));
  fs::remove_all(folder);
  const std::string chief = "127.0.0.1:" + std::to_string(testing::free_port());
  WorkerProcesses workers("is_killed_beside_steps", 2, [&, place = place](int64_t w) {
    return WorkerProcesses::Environment{{"PLACE", place},
                                        {"FOLDER", folder.string()},
                                        {"LOCKSTEP_NUM_WORKERS", "2"},
                                        {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
                                        {"LOCKSTEP_CHIEF_ADDRESS", chief},
                                        {"LOCKSTEP_JOB_ID", "phases-test-" + std::to_string(getpid())}};
  });
  EXPECT_EQ(workers.expect(0, "step ", std::chrono::seconds(120)).text, std::string("step 2, ") + phase);
  EXPECT_EQ(workers.wait(1).signal, SIGKILL);
  EXPECT_EQ(workers.wait(0).code, 0) << workers.output(0);
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Places, WorkerPhasesBesideSteps,
                         ::testing::Values(std::pair("save", "saving a checkpoint after 2 steps"),
                                           std::pair("restore", "restoring a checkpoint after 2 steps"),
                                           std::pair("input", "waiting for its input, before step 2")),
                         [](const auto& one) { return one.param.first; });

}  // namespace
}  // namespace lockstep
