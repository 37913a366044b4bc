// Fits on workers that are processes: the bits, the logs and the decisions of one process, and one end for all.
#include <torch/utils.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/support/free_port.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/worker_processes.h"
#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

std::string given(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// A fit with decisions in it: it stops early, lowers the rate, and gives back the best values.
std::string fitted(Strategy& strategy, const std::vector<std::shared_ptr<Callback>>& more = {}) {
  const Setting setting(strategy);
  Trainer trainer = setting.trainer();
  FitOptions options{.epochs = 6,
                     .validation = setting.validation,
                     .callbacks = {callbacks::early_stopping({.patience = 2, .restore_best = true}),
                                   callbacks::reduce_on_plateau({.monitor = "loss", .patience = 1, .min_delta = 10})}};
  options.callbacks.insert(options.callbacks.end(), more.begin(), more.end());
  const History history = trainer.fit(setting.train, options);
  return digest_of(setting) + " " + trainer.stopped() + " " + history.to_json().dump();
}

MultiWorkerMirroredOptions options() {
  return {.devices = lanes(std::stoi(given("LANES"))),
          .replicas = std::stoll(given("REPLICAS")),
          .seed = 3,
          .engine = given("ENGINE"),
          .timeouts = {.join = std::chrono::seconds(60)}};
}

WORKER_BODY(fit) {
  torch::set_num_threads(1);
  MultiWorkerMirroredStrategy strategy(options());
  report("fitted " + fitted(strategy, {callbacks::tensor_board({.directory = given("FOLDER") + "/runs"}),
                                       callbacks::html_report({.file = given("FOLDER") + "/report.html"}),
                                       callbacks::checkpoints({.directory = given("FOLDER") + "/checkpoints"})}));
}

/// The callback of worker 1 throws after step 6; all others stand at the state of that step.
WORKER_BODY(fit_in_which_one_throws) {
  torch::set_num_threads(1);
  MultiWorkerMirroredStrategy strategy(options());
  const Setting setting(strategy);
  Trainer trainer = setting.trainer();
  try {
    trainer.fit(setting.train, {.epochs = 6,
                                .callbacks = {callbacks::each_step(
                                    [](Trainer& own, const Logs&) {
                                      if (own.strategy().worker_index() == 1 && own.status().step == 6)
                                        throw std::runtime_error("as asked");
                                    },
                                    "the thrower")}});
  } catch (const PeerError& error) {
    report("peer " + std::string(error.what()));
  } catch (const std::runtime_error& error) {
    report("own " + std::string(error.what()));
  }
  report("digest " + digest_of(setting));
}

class FitInProcesses : public ScratchFolder {
 protected:
  /// Workers of one job, that each run `body`.
  std::unique_ptr<WorkerProcesses> start(const std::string& body, const WorkersCase& one, const std::string& engine) {
    const uint16_t port = free_port();
    return std::make_unique<WorkerProcesses>(body, one.workers, [&](int64_t w) {
      return WorkerProcesses::Environment{{"LOCKSTEP_NUM_WORKERS", std::to_string(one.workers)},
                                          {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
                                          {"LOCKSTEP_CHIEF_ADDRESS", "127.0.0.1:" + std::to_string(port)},
                                          {"LOCKSTEP_JOB_ID", "fits-" + std::to_string(getpid())},
                                          {"LOCKSTEP_SECRET", "a secret of the test"},
                                          {"REPLICAS", std::to_string(one.replicas)},
                                          {"LANES", std::to_string(one.lanes)},
                                          {"ENGINE", engine},
                                          {"FOLDER", path(std::to_string(port))}};
    });
  }
};

struct InProcesses {
  WorkersCase placed;
  const char* engine;
};

}  // namespace

TEST_F(FitInProcesses, HasTheBitsLogsAndDecisionsOfOneProcess) {
  std::map<int64_t, std::string> expected;  // by the number of replicas
  for (const InProcesses& one :
       {InProcesses{{1, 1, 1}, "auto"}, InProcesses{{2, 2, 1}, "tcp"}, InProcesses{{2, 3, 1}, "shared-memory"},
        InProcesses{{3, 3, 1}, "tls"}, InProcesses{{2, 4, 2}, "tcp"}, InProcesses{{3, 4, 1}, "shared-memory"}}) {
    const int64_t replicas = one.placed.replicas;
    if (expected[replicas].empty()) {
      MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = replicas, .seed = 3});
      expected[replicas] = "fitted " + fitted(strategy);
    }
    const auto workers = start("fit", one.placed, one.engine);
    for (const Report& found : workers->expect_all("", std::chrono::seconds(180))) {
      EXPECT_EQ(found.text, expected[replicas]) << one.placed << " by " << one.engine;
    }
  }
}

TEST_F(FitInProcesses, EndsOnAllWhereTheCallbackOfOneThrows) {
  const auto workers = start("fit_in_which_one_throws", {3, 3, 1}, "tcp");
  MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 3, .seed = 3});
  const Setting setting(strategy);
  setting.trainer().fit(setting.train, {.steps = 6});
  const std::string expected = "digest " + digest_of(setting);
  for (int64_t w = 0; w < 3; ++w) {
    const std::string text = workers->expect(w, w == 1 ? "own" : "peer", std::chrono::seconds(180)).text;
    EXPECT_TRUE(has_value(text, "as asked")) << text;
    if (w != 1) {
      EXPECT_TRUE(has_value(text, "worker 1")) << text;
      EXPECT_TRUE(has_value(text, "the callback 'the thrower' threw in on_step_end")) << text;
    }
    EXPECT_EQ(workers->expect(w, "digest").text, expected) << "worker " << w;
  }
}

}  // namespace lockstep::testing
