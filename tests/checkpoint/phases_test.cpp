// Workers that fail while they save, restore or read their input: the others say who it was, what it was doing, and
// soon.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/comm/join/join.h"
#include "lockstep/lockstep.h"
#include "tests/support/fault_seeds.h"
#include "tests/support/free_port.h"
#include "tests/support/worker_processes.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::OneOfSeveral;
using testing::Report;
using testing::report;
using testing::WorkerProcesses;

constexpr std::chrono::milliseconds kLost(1000);

/// Lets worker 1 fail where this is the place of the test.
void fail_at(const std::string& place) {
  if (testing::my_worker_index() != 1 || place != std::getenv("PLACE")) return;
  const std::string how = std::getenv("HOW");
  report("the fault comes");
  if (how == "kill") std::raise(SIGKILL);
  if (how == "stop") std::raise(SIGSTOP);
  if (how == "exit") std::exit(0);
  if (how == "exception") throw std::runtime_error("its own mistake");
}

/// Reads and makes two steps, saves, restores, and reads again.
WORKER_BODY(fails_beside_steps) {
  torch::set_num_threads(1);
  const fs::path folder = std::getenv("FOLDER");
  const int64_t workers = std::stoll(std::getenv("LOCKSTEP_NUM_WORKERS"));
  try {
    OneOfSeveral strategy(join(resolve_cluster(), {.engine = std::getenv("ENGINE"), .timeouts = {.lost = kLost}}),
                          workers, 1, nullptr);
    bool is_input = false;
    const auto samples =
        data::from_tensors(torch::zeros({4 * workers, 1}), torch::zeros({4 * workers})).map([&](Batch sample) {
          if (is_input) fail_at("input");
          return sample;
        });
    const auto data = strategy.distribute(samples, {.global_batch = workers, .prefetch = 0});
    int step = 0;
    Checkpoint checkpoint(strategy);
    checkpoint.track(
        "value",
        [] {
          fail_at("save");
          return std::string("7");
        },
        [](const std::string&) { fail_at("restore"); });
    CheckpointManager manager(checkpoint, {.directory = folder, .async = false});
    for (const auto& batch : data.epoch(0)) {
      strategy.run(batch, [](ReplicaContext&, const Batch&) {});
      if (++step < 2) continue;
      manager.save();
      manager.restore_latest();
      is_input = true;
    }
    report("nothing has failed");
  } catch (const PeerError& error) {
    const PeerError::Failed& failed = error.failed();
    report(fmt::format("worker {}, process {}, step {}, {}", failed.worker, failed.process, failed.step, failed.phase));
    report(fmt::format("failed: {}", error.what()));
  } catch (const std::exception& error) {
    report(fmt::format("its own: {}", error.what()));
  }
}

using Fault = std::tuple<std::string, std::string, std::string>;  // place, how, engine

class WorkerPhasesBesideSteps : public ::testing::TestWithParam<Fault> {};

TEST_P(WorkerPhasesBesideSteps, AreToldOfAWorkerThatFailsInThem) {
  const auto& [place, how, engine] = GetParam();
  const std::map<std::string, std::string> phases{{"save", "saving a checkpoint after 2 steps"},
                                                  {"restore", "restoring a checkpoint after 2 steps"},
                                                  {"input", "waiting for its input, before step 2"}};
  const std::map<std::string, std::string> words{{"kill", "is gone"},
                                                 {"stop", "is frozen"},
                                                 {"exit", "ended its program"},
                                                 {"exception", "was ended by an exception"}};
  const int64_t count = testing::all_engines() ? 3 : 2;
  const fs::path folder = fs::temp_directory_path() / ("lockstep-phases-" + std::to_string(getpid()));
  fs::remove_all(folder);
  const std::string chief = "127.0.0.1:" + std::to_string(testing::free_port());
  WorkerProcesses workers("fails_beside_steps", count, [&](int64_t w) {
    return WorkerProcesses::Environment{{"PLACE", std::get<0>(GetParam())},
                                        {"HOW", std::get<1>(GetParam())},
                                        {"ENGINE", std::get<2>(GetParam())},
                                        {"FOLDER", folder.string()},
                                        {"LOCKSTEP_NUM_WORKERS", std::to_string(count)},
                                        {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
                                        {"LOCKSTEP_CHIEF_ADDRESS", chief},
                                        {"LOCKSTEP_JOB_ID", "phases-test-" + std::to_string(getpid())}};
  });
  const Report fault = workers.expect(1, "the fault comes", std::chrono::seconds(120));
  const auto within = how == "stop" ? 2 * kLost : std::chrono::milliseconds(1000);
  for (int64_t w = 0; w < count; ++w) {
    if (w == 1) continue;
    const Report failed = workers.expect(w, "failed: ");
    EXPECT_LT(failed.when - fault.when, within) << failed.text;
    if (how == "exception" && place != "input") {
      // Where a call fails, nobody is lost: all go on, and the message says in which call.
      const std::string call = place == "save" ? "Checkpoint::save" : "Checkpoint::restore";
      EXPECT_NE(failed.text.find(call + " failed on worker 1: its own mistake"), std::string::npos) << failed.text;
    } else {
      EXPECT_NE(failed.text.find(words.at(how)), std::string::npos) << failed.text;
    }
    EXPECT_EQ(workers.expect(w, "worker ").text,
              fmt::format("worker 1, process {}, step 2, {}", workers.pid(1), phases.at(place)));
    EXPECT_EQ(workers.wait(w, std::chrono::seconds(10)).code, 0) << workers.output(w);
  }
  if (how == "stop") workers.signal(1, SIGKILL);
  const testing::Ending end = workers.wait(1, std::chrono::seconds(10));
  EXPECT_EQ(end.signal, how == "kill" || how == "stop" ? SIGKILL : 0);
  if (how == "exception") {
    EXPECT_NE(workers.expect(1, "its own: ").text.find("its own mistake"), std::string::npos);
  }
  fs::remove_all(folder);
}

/// Shared memory in the suite, and another engine by scripts/test-faults.
std::vector<std::string> engines() {
  return testing::all_engines() ? std::vector<std::string>{"shared-memory", "tls"}
                                : std::vector<std::string>{"shared-memory"};
}

std::string name_of(const ::testing::TestParamInfo<Fault>& one) {
  const auto& [place, how, engine] = one.param;
  return fmt::format("{}_{}_{}", place, how, engine == "tls" ? "tls" : "SharedMemory");
}
INSTANTIATE_TEST_SUITE_P(Places, WorkerPhasesBesideSteps,
                         ::testing::Combine(::testing::Values("save", "restore", "input"),
                                            ::testing::Values("kill", "stop", "exit", "exception"),
                                            ::testing::ValuesIn(engines())),
                         name_of);

}  // namespace
}  // namespace lockstep
