// For tests of the forms in which several workers update: some variables, and a comparison with one worker.
#pragma once

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/blocks.h"
#include "tests/support/factored.h"
#include "tests/support/workers.h"

namespace lockstep::testing {

inline constexpr const char* kShared = ", of the host's workers";

/// By worker, its host: several hosts, of which some have several workers.
inline const std::vector<std::vector<int64_t>> kHostLayouts{
    {0, 0, 1}, {0, 1, 0}, {0, 0, 1, 1}, {0, 1, 1, 0}, {0, 0, 1, 2}};

/// LOCKSTEP_HOST_MEMORY is `value` while the scope lives.
class HostMemoryIs : EnvironmentScope {
 public:
  explicit HostMemoryIs(const char* value) : EnvironmentScope("LOCKSTEP_HOST_MEMORY", value) {}
};

/// LOCKSTEP_SLOTS is `value` while the scope lives.
class SlotsAre : EnvironmentScope {
 public:
  explicit SlotsAre(const char* value) : EnvironmentScope("LOCKSTEP_SLOTS", value) {}
};

inline bool is_shared(Strategy& strategy) { return has_value(strategy.describe(), kShared); }

inline int64_t first_replica(const Strategy& strategy) {
  return internal::block_of(strategy.num_replicas(), strategy.num_workers(), strategy.worker_index()).first;
}

/// Numbers that take several blocks of an update.
inline torch::Tensor wave(int64_t rows, int64_t columns, double phase = 0) {
  return torch::arange(rows * columns).to(torch::kFloat).mul(0.37).add(phase).sin().view({rows, columns});
}

/// Some variables of several blocks, with an optimizer; each replica's gradients differ.
struct WavyNet {
  explicit WavyNet(Strategy& strategy)
      : a(strategy.make_variable(wave(90, 70), {.name = "a"})),
        b(strategy.make_variable(wave(1, 9, 1).view({9}), {.name = "b"})),
        c(strategy.make_variable(wave(100, 50, 2).to(torch::kDouble), {.name = "c"})),
        optimizer(strategy.make_optimizer({a, b, c}, torch::optim::AdamWOptions(0.01))) {}

  torch::Tensor loss(ReplicaContext& ctx) const {
    const double own = 1 + static_cast<double>(ctx.replica_id().value()) + 0.1 * static_cast<double>(ctx.step());
    const auto x = (a.value(ctx) * own).sin().sum() + (b.value(ctx) * own).pow(2).sum();
    return x.to(torch::kDouble) + (c.value(ctx) * own).cos().sum();
  }
  void step(Strategy& strategy, const StepOptions& options = {}) const {
    strategy.run([&](ReplicaContext& ctx) {
      loss(ctx).backward();
      optimizer.step(ctx, options);
    });
  }
  std::vector<Variable> all() const {
    std::vector<Variable> variables{a, b, c};
    for (const Variable& slot : optimizer.slots()) variables.push_back(slot);
    return variables;
  }
  /// A digest of weights and slots. A call of all workers.
  std::string digest() const {
    optimizer.gather_slots();
    std::vector<std::pair<std::string, torch::Tensor>> named;
    for (const Variable& one : all()) named.emplace_back(one.name(), one.read());
    return sha256_of(named);
  }

  Variable a;
  Variable b;
  Variable c;
  Optimizer optimizer;
};

/// What `program` returns must be the same on one worker, and on every worker of several: in host memory, of one host
/// and of several, where each worker updates all, and with sliced slots. Without `can_ask`, an optimizer of it cannot
/// have each form, so that none is asked for.
inline void expect_same_in_all_forms(const std::function<std::vector<std::string>(Strategy&)>& program,
                                     bool can_ask = true) {
  const auto expected = run_workers({1, 4}, program).front();
  EXPECT_FALSE(expected.empty());
  const auto expect_same = [&](const WorkersCase& one, const char* host_memory, const char* slots) {
    const HostMemoryIs memory(host_memory);
    const SlotsAre divided(slots);
    for (const auto& found : run_workers(one, program))
      EXPECT_EQ(found, expected) << one << ", host memory " << host_memory << ", slots " << slots;
  };
  for (const WorkersCase& one : {WorkersCase{2, 4, 2}, {3, 4, 1}, {4, 4, 1}}) {
    expect_same(one, "auto", "whole");
    expect_same(one, "off", "whole");
    if (can_ask) expect_same(one, "auto", "sliced");
  }
  // Where most hosts have one worker, the form has to be asked for.
  for (const auto& hosts : kHostLayouts) {
    const EnvironmentScope form("LOCKSTEP_UPDATE_FORM", can_ask ? "host-memory" : "auto");
    expect_same({.workers = static_cast<int64_t>(hosts.size()), .replicas = 4, .hosts = hosts}, "auto", "whole");
  }
}

/// Replica `writer` writes an element of a variable in a step of a WavyNet whose update is shared. All workers must get
/// the error that names `replicas`, and apply nothing; and they can go on.
inline void expect_foreign_write_is_named(Strategy& strategy, int64_t writer, int64_t element, const char* replicas) {
  const WavyNet net(strategy);
  net.step(strategy);
  const torch::Tensor c = net.c.read();
  const auto error = error_from<ReplicaError>([&] {
    strategy.run([&](ReplicaContext& ctx) {
      ctx.all_reduce(Reduction::kSum, torch::ones({1}));
      if (ctx.replica_id() == writer) net.a.value(ctx).data_ptr<float>()[element] = 7;
      ctx.all_reduce(Reduction::kSum, torch::ones({1}));
      net.loss(ctx).backward();
      net.optimizer.step(ctx);
    });
  });
  expect_error<DivergenceError>([&] { std::rethrow_if_nested(error); }, "LS-FOREIGN-WRITE", {"variable 'a'", replicas});
  EXPECT_TRUE(torch::equal(net.c.read(), c)) << "the step was applied in part";
  net.a.assign(torch::ones({90, 70}));  // sound again
  net.step(strategy);
  EXPECT_FALSE(torch::equal(net.c.read(), c));
  EXPECT_TRUE(is_shared(strategy));
}

}  // namespace lockstep::testing
