// Workers of which one has no memory, at each place of an optimizer's step at which it asks for some.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/host_update.h"
#include "tests/support/scarce_memory.h"

namespace {

void* scarce(std::size_t bytes) {
  void* const memory = lockstep::testing::ScarceMemory::fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Of the whole program; they are as the standard ones where no test lets an allocation fail.
void* operator new(std::size_t bytes) { return scarce(bytes); }
void* operator new[](std::size_t bytes) { return scarce(bytes); }
// What may fail without an exception is not of interest, and has to fit the functions that free it.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes == 0 ? 1 : bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes == 0 ? 1 : bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace lockstep {
namespace {

using testing::OneOfSeveral;
using testing::ScarceMemory;
using testing::WorkersCase;

/// A World in which memory is not scarce: what engines do without it is their own.
class AmpleWorld final : public World {
 public:
  explicit AmpleWorld(std::shared_ptr<World> world) : world_(std::move(world)) {}
  int64_t num_workers() const override { return world_->num_workers(); }
  int64_t worker_index() const override { return world_->worker_index(); }
  std::vector<std::string> agree(const std::string& mine) override {
    const ScarceMemory::Scope ample(nullptr);
    return world_->agree(mine);
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    const ScarceMemory::Scope ample(nullptr);
    world_->exchange(to, from);
  }
  HostMemory* host_memory() override { return world_->host_memory(); }
  Windows* windows() override { return world_->windows(); }
  void set_phase(const WorkerPhase& phase) noexcept override { world_->set_phase(phase); }
  void abort(const std::string& reason) noexcept override { world_->abort(reason); }

 private:
  const std::shared_ptr<World> world_;
};

/// A weight whose gradient can be kept as factors, and another variable.
class ScarceNet {
 public:
  explicit ScarceNet(Strategy& strategy)
      : weight_(strategy.make_variable(torch::arange(128 * 64).to(torch::kFloat).sin().view({128, 64}),
                                       {.name = "weight"})),
        bias_(strategy.make_variable(torch::arange(128).to(torch::kDouble).cos(), {.name = "bias"})),
        optimizer_(strategy.make_optimizer({weight_, bias_}, torch::optim::AdamWOptions(0.01))) {}

  /// Where `memory` is given, that of the optimizer's step on this worker.
  void step(Strategy& strategy, ScarceMemory* memory = nullptr) const {
    strategy.run([&](ReplicaContext& ctx) {
      const auto x = torch::arange(2 * 64).add(100 * ctx.replica_id() + ctx.step()).to(torch::kFloat).cos();
      const auto y = torch::linear(x.view({2, 64}), weight_.value(ctx)).to(torch::kDouble) + bias_.value(ctx);
      y.pow(2).sum().backward();
      const ScarceMemory::Scope scope(memory);
      optimizer_.step(ctx, {.clip_global_norm = 1});
    });
  }
  /// Of the weights, and of slots where `with_slots`. Calls no other worker.
  std::string digest(bool with_slots) const {
    std::vector<std::pair<std::string, torch::Tensor>> named{{"weight", weight_.read()}, {"bias", bias_.read()}};
    for (const Variable& slot : optimizer_.slots()) {
      if (with_slots) named.emplace_back(slot.name(), slot.read());
    }
    return sha256_of(named);
  }

 private:
  Variable weight_;
  Variable bias_;
  Optimizer optimizer_;
};

/// How workers update.
struct MemoryForm {
  const char* name;
  const char* update_form;
  const char* slots;
  const char* factored;
  WorkersCase workers;
};

std::ostream& operator<<(std::ostream& out, const MemoryForm& form) { return out << form.name; }

/// The text of what `fn` throws; empty where it throws nothing.
std::string text_from(const std::function<void()>& fn) {
  try {
    fn();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

bool says_no_memory(const std::string& text) {
  return text.find("no memory") != std::string::npos || text.find("can't allocate memory") != std::string::npos;
}

class StepMemory : public ::testing::TestWithParam<MemoryForm> {
 protected:
  /// What one worker has seen: the step in which memory was scarce, and the next one.
  struct Seen {
    std::string error;
    std::string digest;
    std::string next_error;
    std::string next_digest;
  };

  /// In step `scarce_step` the n-th allocation of the last worker fails, for each n until no allocation is the n-th.
  /// Where the step does not need memory, there is not even the first.
  void expect_named_at_each_allocation(int64_t scarce_step, bool needs_memory = true) {
    const MemoryForm& form = GetParam();
    if (std::string(form.factored) == "always" && !testing::can_factor())
      GTEST_SKIP() << "this LibTorch or processor keeps no factors";
    const testing::EnvironmentScope asked("LOCKSTEP_UPDATE_FORM", form.update_form);
    const testing::SlotsAre slots(form.slots);
    const testing::FactoredGradientsAre factored(form.factored);
    const std::vector<std::string> expected = digests(scarce_step + 1);
    const testing::ScarceTensors tensors;
    int64_t n = 1;
    for (;; ++n) {
      SCOPED_TRACE("allocation " + std::to_string(n));
      ScarceMemory memory(n);
      const std::vector<Seen> seen = train(scarce_step, memory);
      if (!memory.has_failed()) break;
      expect_named(seen, expected[static_cast<std::size_t>(scarce_step)], expected.back());
      if (HasFailure()) return;  // all others would say the same
    }
    EXPECT_EQ(n > 1, needs_memory) << n - 1 << " allocations were counted";
  }

 private:
  bool reads_slots() const { return std::string(GetParam().slots) != "sliced"; }

  /// After each number of steps up to `steps`, by one worker.
  std::vector<std::string> digests(int64_t steps) const {
    OneOfSeveral strategy(nullptr, GetParam().workers.replicas, 1, nullptr);
    const ScarceNet net(strategy);
    std::vector<std::string> all{net.digest(reads_slots())};
    for (int64_t step = 0; step < steps; ++step) {
      net.step(strategy);
      all.push_back(net.digest(reads_slots()));
    }
    return all;
  }

  /// By worker.
  std::vector<Seen> train(int64_t scarce_step, ScarceMemory& memory) const {
    const WorkersCase& one = GetParam().workers;
    std::vector<Seen> all(static_cast<std::size_t>(one.workers));
    const ThreadWorkers workers(one.workers, std::chrono::seconds(60), one.hosts);
    std::vector<std::thread> threads;
    for (int64_t w = 0; w < one.workers; ++w) {
      threads.emplace_back([&, w, world = std::make_shared<AmpleWorld>(workers.world(w))]() mutable {
        Seen& seen = all[static_cast<std::size_t>(w)];
        seen.error = text_from([&] {
          OneOfSeveral strategy(std::move(world), one.replicas, one.lanes, nullptr);
          const ScarceNet net(strategy);
          for (int64_t step = 0; step < scarce_step; ++step) net.step(strategy);
          const std::string error = text_from([&] { net.step(strategy, w + 1 == one.workers ? &memory : nullptr); });
          seen.digest = net.digest(reads_slots());
          seen.next_error = text_from([&] { net.step(strategy); });
          seen.next_digest = net.digest(reads_slots());
          if (!error.empty()) throw std::runtime_error(error);
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
    return all;
  }

  /// All workers say who has failed and why, and have what they had before. The next step works on all of them, or all
  /// say the same again.
  static void expect_named(const std::vector<Seen>& all, const std::string& before, const std::string& next) {
    const std::string failed = "worker " + std::to_string(all.size() - 1);
    const bool goes_on = all.front().next_error.empty();
    for (std::size_t w = 0; w < all.size(); ++w) {
      const Seen& one = all[w];
      const bool is_own = w + 1 == all.size();
      EXPECT_TRUE(says_no_memory(one.error)) << "worker " << w << ": " << one.error;
      EXPECT_TRUE(is_own || one.error.find(failed) != std::string::npos) << "worker " << w << ": " << one.error;
      EXPECT_EQ(one.digest, before) << "worker " << w << " has not what it had before: " << one.error;
      EXPECT_EQ(one.next_error.empty(), goes_on) << "worker " << w << ": " << one.next_error;
      EXPECT_EQ(one.next_digest, goes_on ? next : before) << "worker " << w << ": " << one.next_error;
      if (goes_on) continue;
      EXPECT_TRUE(says_no_memory(one.next_error)) << "worker " << w << ": " << one.next_error;
      EXPECT_NE(one.next_error.find(failed), std::string::npos) << "worker " << w << ": " << one.next_error;
    }
  }
};

TEST_P(StepMemory, IsShortOnOneWorkerInTheFirstStepAndAllSayWhoHasFailedAndChangeNothing) {
  expect_named_at_each_allocation(0);
}

// Buckets leave during backward then. One worker alone has all of its memory since the first step.
TEST_P(StepMemory, IsShortOnOneWorkerInALaterStepAndAllSayWhoHasFailedAndChangeNothing) {
  expect_named_at_each_allocation(3, GetParam().workers.workers > 1);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, StepMemory,
    ::testing::Values(
        MemoryForm{"OneWorker", "auto", "whole", "always", {.workers = 1, .replicas = 2}},
        MemoryForm{"HostMemory", "auto", "whole", "off", {.workers = 2, .replicas = 2}},
        MemoryForm{"HostMemoryOfFactors", "auto", "whole", "always", {.workers = 2, .replicas = 4, .lanes = 2}},
        MemoryForm{"Sums", "sums", "whole", "off", {.workers = 2, .replicas = 2}},
        MemoryForm{"SumsOfSeveralSubtrees", "sums", "whole", "off", {.workers = 2, .replicas = 6}},
        MemoryForm{"SumsOfLanes", "sums", "whole", "off", {.workers = 3, .replicas = 6, .lanes = 2}},
        MemoryForm{"Factors", "factors", "whole", "always", {.workers = 2, .replicas = 2}},
        MemoryForm{"Slices", "auto", "sliced", "off", {.workers = 2, .replicas = 4, .lanes = 2}},
        MemoryForm{"SlicesOfFactors", "auto", "sliced", "always", {.workers = 3, .replicas = 3}},
        MemoryForm{"SeveralHosts", "host-memory", "whole", "off", {4, 4, 1, WireFormat::kExact, {0, 0, 1, 1}}},
        MemoryForm{
            "FactorsBetweenHosts", "host-memory", "whole", "always", {4, 4, 1, WireFormat::kExact, {0, 0, 1, 1}}}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace lockstep
