// A worker is killed at each point of a step whose update workers share or divide: the others have the weights and
// slots of one completed step.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/join/join.h"
#include "lockstep/variable/variable_state.h"
#include "tests/support/free_port.h"
#include "tests/support/host_update.h"
#include "tests/support/hosts.h"
#include "tests/support/worker_processes.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::OneOfSeveral;
using testing::report;
using testing::WorkerProcesses;

constexpr int64_t kReplicas = 3;
constexpr int kStepsBefore = 2;
constexpr int kSteps = 6;

/// Kills this process before or after its n-th call from now on.
class MortalWorld final : public World {
  template <class Call>
  std::invoke_result_t<const Call&> counted(const Call& call) {
    ++calls_;
    if (calls_ == call_ && !after_) raise(SIGKILL);
    auto result = call();
    if (calls_ == call_ && after_) raise(SIGKILL);
    return result;
  }

 public:
  explicit MortalWorld(std::shared_ptr<World> world) : world_(std::move(world)) {}

  void die(int call, bool after) {
    call_ = calls_ + call;
    after_ = after;
  }
  int64_t num_workers() const override { return world_->num_workers(); }
  int64_t worker_index() const override { return world_->worker_index(); }
  std::vector<std::string> agree(const std::string& mine) override {
    return counted([&] { return world_->agree(mine); });
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    counted([&] {
      world_->exchange(to, from);
      return 0;
    });
  }
  HostMemory* host_memory() override { return world_->host_memory(); }
  void abort(const std::string& reason) noexcept override { world_->abort(reason); }

 private:
  const std::shared_ptr<World> world_;
  int calls_ = 0;
  int call_ = -1;
  bool after_ = false;
};

struct Model {
  explicit Model(Strategy& strategy)
      : weight(strategy.make_variable(torch::arange(9000).to(torch::kFloat).sin(), {.name = "weight"})),
        bias(strategy.make_variable(torch::arange(40).to(torch::kDouble).cos(), {.name = "bias"})),
        optimizer(strategy.make_optimizer({weight, bias}, torch::optim::AdamWOptions(0.01))) {}

  void step(Strategy& strategy) const {
    strategy.run([&](ReplicaContext& ctx) {
      const double own = 1 + static_cast<double>(ctx.replica_id().value()) + static_cast<double>(ctx.step());
      ((weight.value(ctx) * own).sin().sum() + (bias.value(ctx) * own).pow(2).sum()).backward();
      optimizer.step(ctx, {.clip_global_norm = 1});
    });
  }
  /// Of weights, and of slots unless these are sliced; calls no other worker.
  std::string digest(bool sliced) const {
    std::vector<std::pair<std::string, torch::Tensor>> named{{"weight", weight.read()}, {"bias", bias.read()}};
    for (const Variable& slot : optimizer.slots()) {
      if (!sliced) named.emplace_back(slot.name(), slot.read());
    }
    return sha256_of(named);
  }

  Variable weight;
  Variable bias;
  Optimizer optimizer;
};

/// Whether the slices that this worker has of its slots are those of `whole`: everything else is zero.
bool has_slices_of(const Model& mine, const Model& whole) {
  int64_t elements = 0;
  for (std::size_t s = 0; s < mine.optimizer.slots().size(); ++s) {
    const torch::Tensor& own = mine.optimizer.slots()[s].state().copies().front();
    if (!((own == whole.optimizer.slots()[s].read()) | (own == 0)).all().item<bool>()) return false;
    elements += own.count_nonzero().item<int64_t>();
  }
  return elements >= 2 * 2048;  // each worker has one block of both slots of the weight at least
}

WORKER_BODY(trains_beside_one_that_dies) {
  torch::set_num_threads(1);
  const bool sliced = std::string(std::getenv("LOCKSTEP_SLOTS")) == "sliced";
  const std::string hosts = std::getenv("HOSTS");
  const auto join_job = [&] {
    if (hosts.empty()) return join(resolve_cluster(), {.engine = "shared-memory"});
    return testing::join_from_host({.hosts = hosts,
                                    .worker = testing::my_worker_index(),
                                    .port = static_cast<uint16_t>(std::stoi(std::getenv("PORT")))});
  };
  const auto world = std::make_shared<MortalWorld>(join_job());
  OneOfSeveral strategy(world, kReplicas, 1, nullptr);
  const Model model(strategy);
  for (int step = 0; step < kStepsBefore; ++step) model.step(strategy);
  if (!testing::has_value(strategy.describe(), sliced ? ", in slices" : testing::kShared))
    throw std::runtime_error("the update is neither shared nor divided");
  if (std::to_string(world->worker_index()) == std::getenv("DIES"))
    world->die(std::atoi(std::getenv("CALL")), std::string(std::getenv("WHEN")) == "after");
  try {
    for (int step = kStepsBefore; step < kSteps; ++step) model.step(strategy);
    report("no worker has died");
  } catch (const Error&) {
    report("survived " + std::to_string(strategy.step()) + " " + model.digest(sliced));
    if (!sliced) return;
    OneOfSeveral alone(nullptr, kReplicas, 1, nullptr);
    const Model whole(alone);
    while (whole.digest(true) != model.digest(true) && alone.step() < kSteps) whole.step(alone);
    report(has_slices_of(model, whole) ? "slices of that step" : "slices of another step");
  }
}

/// Digests after 0, 1, 2... steps of one worker.
std::vector<std::string> expected_digests(bool sliced) {
  OneOfSeveral strategy(nullptr, kReplicas, 1, nullptr);
  const Model model(strategy);
  std::vector<std::string> all{model.digest(sliced)};
  for (int step = 0; step < kSteps; ++step) {
    model.step(strategy);
    all.push_back(model.digest(sliced));
  }
  return all;
}

/// Kills one of three workers before and after each of its calls in a step. `hosts` names the host of each worker;
/// where it is empty, all share the memory of one.
void kill_at_each_call_of_a_step(const char* slots, const char* hosts = "") {
  const bool sliced = std::string(slots) == "sliced";
  const std::vector<std::string> expected = expected_digests(sliced);
  // Shared: the meeting, gradients, places, packed, measured, the vote, the end. Divided: the meeting, gradients, sums,
  // squares, new weights, the vote, the end. Between hosts, partial sums and sums come behind what is packed.
  const int kCallsOfAStep = *hosts ? 9 : 7;
  std::map<int64_t, int> seen;  // how often survivors had the weights of so many steps
  for (int call = 1; call <= kCallsOfAStep; ++call) {
    for (const char* when : {"before", "after"}) {
      const int64_t dies = call % 3;
      const std::string port = std::to_string(testing::free_port());
      WorkerProcesses workers("trains_beside_one_that_dies", 3, [&](int64_t w) {
        return WorkerProcesses::Environment{
            {"LOCKSTEP_NUM_WORKERS", "3"},
            {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
            {"LOCKSTEP_LOCAL_WORKER", std::to_string(w)},
            {"LOCKSTEP_CHIEF_ADDRESS", "127.0.0.1:" + std::to_string(4000)},
            {"LOCKSTEP_JOB_ID", "kill-test-" + std::to_string(getpid()) + "-" + std::to_string(call) + when + slots},
            {"LOCKSTEP_SLOTS", slots},
            {"HOSTS", hosts},
            {"LOCKSTEP_UPDATE_FORM", sliced ? "auto" : "host-memory"},
            {"PORT", port},
            {"LOCKSTEP_SECRET", "a secret of the test"},
            {"DIES", std::to_string(dies)},
            {"CALL", std::to_string(call)},
            {"WHEN", when}};
      });
      std::vector<std::string> found;
      for (int64_t w = 0; w < 3; ++w) {
        if (w == dies) continue;
        found.push_back(workers.expect(w, "survived ", std::chrono::seconds(120)).text);
        if (sliced) workers.expect(w, "slices of that step", std::chrono::seconds(120));
      }
      EXPECT_EQ(found.front(), found.back()) << "survivors differ: killed " << when << " call " << call;
      const std::string digest = found.front().substr(found.front().rfind(' ') + 1);
      const auto steps = std::find(expected.begin(), expected.end(), digest) - expected.begin();
      ++seen[steps];
      EXPECT_TRUE(steps == kStepsBefore || steps == kStepsBefore + 1)
          << "killed " << when << " call " << call << ": the weights of step " << steps;
      EXPECT_EQ(workers.wait(dies).signal, SIGKILL);
    }
  }
  EXPECT_GT(seen[kStepsBefore], 0);
  EXPECT_GT(seen[kStepsBefore + 1], 0);
}

TEST(HostUpdateKill, LeavesTheOthersWithOneCompletedStepWhereverAWorkerDies) { kill_at_each_call_of_a_step("whole"); }

TEST(SlicedSlotsKill, LeavesTheOthersWithOneCompletedStepWhereverAWorkerDies) { kill_at_each_call_of_a_step("sliced"); }

TEST(SeveralHostsKill, LeavesTheOthersWithOneCompletedStepWhereverAWorkerDies) {
  kill_at_each_call_of_a_step("whole", "001");
}

/// How many kilobytes this process maps together with others, of files that have no name.
int64_t shared_kilobytes() {
  std::ifstream maps("/proc/self/smaps");
  int64_t total = 0;
  bool counts = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" rw-s ") != std::string::npos || line.find(" r--p ") != std::string::npos ||
        line.find(" rw-p ") != std::string::npos) {
      counts =
          line.find("rw-s") != std::string::npos && line.find("memfd:lockstep workers (deleted)") != std::string::npos;
    }
    if (counts && line.rfind("Size:", 0) == 0) total += std::atoll(line.c_str() + 5);
  }
  return total;
}

constexpr int64_t kLarge = 4 << 20;  // elements: 16 MiB

WORKER_BODY(trains_a_large_vector) {
  torch::set_num_threads(1);
  const auto world = join(resolve_cluster(), {.engine = "shared-memory"});
  OneOfSeveral strategy(world, 2, 1, nullptr);
  const int64_t before = shared_kilobytes();
  {
    const Variable vector = strategy.make_variable(torch::ones({kLarge}), {.name = "vector"});
    const Optimizer optimizer = strategy.make_optimizer({vector}, torch::optim::SGDOptions(0.5).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      strategy.run([&](ReplicaContext& ctx) {
        vector.value(ctx).sum().backward();
        optimizer.step(ctx);
      });
    }
    report("shared " + std::to_string(shared_kilobytes() - before));
  }
  strategy.on_chief([] { return 0; });  // a call of all: they have come so far
  report("left");
  testing::wait_for("end");
}

TEST(HostUpdateKill, TheMemoryOfAHostIsTwiceWeightsAndSlotsAndEachWorkersSum) {
  WorkerProcesses workers("trains_a_large_vector", 2, [&](int64_t w) {
    return WorkerProcesses::Environment{{"LOCKSTEP_NUM_WORKERS", "2"},
                                        {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
                                        {"LOCKSTEP_LOCAL_WORKER", std::to_string(w)},
                                        {"LOCKSTEP_CHIEF_ADDRESS", "127.0.0.1:4000"},
                                        {"LOCKSTEP_JOB_ID", "memory-test-" + std::to_string(getpid())},
                                        {"LOCKSTEP_SECRET", "a secret of the test"}};
  });
  constexpr int64_t kVector = kLarge * 4 / 1024;
  for (const auto& one : workers.expect_all("shared ", std::chrono::seconds(60))) {
    const int64_t kilobytes = std::stoll(one.text.substr(7));
    EXPECT_GE(kilobytes, 6 * kVector);  // it is one memory, whoever maps it
    EXPECT_LE(kilobytes, 6 * kVector + 1024);
  }
  workers.tell_all("end");
  for (int64_t w = 0; w < 2; ++w) EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
}

}  // namespace
}  // namespace lockstep
