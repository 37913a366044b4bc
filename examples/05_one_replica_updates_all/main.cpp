// One replica sets a variable for all: what does not work, and the four ways that do.
#include <torch/types.h>

#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>

#include "lockstep/lockstep.h"

using lockstep::PerReplica;
using lockstep::ReplicaContext;
using lockstep::Strategy;
using torch::Tensor;

// Does something that must not work, and prints what its user gets to see.
void broken(const std::string& what, const std::function<void()>& mistake) {
  std::cout << "broken, " << what << "\n";
  try {
    mistake();
  } catch (const lockstep::ReplicaError& error) {
    std::cout << "  ReplicaError: " << error.what() << "\n";
    return;
  }
  throw std::logic_error("this should have been an error");
}

// Prints what each replica has.
void right(const std::string& how, const PerReplica<Tensor>& values) {
  std::cout << "right, " << how << ":";
  for (const Tensor& value : values) std::cout << " " << value.item<double>();
  std::cout << "\n";
}

// Each replica looks for a good threshold by itself: here it finds 10, 11, 12, 13 ...
Tensor found_by(lockstep::ReplicaId replica) { return torch::tensor(10.0 + static_cast<double>(replica)); }
// ... of which replica 2's is the best.
double score_of(lockstep::ReplicaId replica) { return replica == 2 ? 0.9 : 0.5; }

int main() {
  lockstep::MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}, .replicas = 4, .seed = 7});
  const auto threshold = strategy.make_variable(
      torch::tensor(0.0),
      {.name = "threshold", .trainable = false, .aggregation = lockstep::VariableAggregation::kOnlyFirstReplica});

  // A write of a variable that is equal everywhere is something that all replicas do together.
  broken("an assign in a branch that one replica takes", [&] {
    strategy.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() == 2) threshold.assign(ctx, found_by(2));
    });
  });
  // And update_from, the call that is meant for it, is a call from outside of replicas.
  broken("update_from in a step", [&] {
    strategy.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() == 2) strategy.update_from(2, threshold, found_by(2));
    });
  });
  right("so far nothing was written", threshold.components());

  // 1. Between steps: update_from. The step returns what each replica found, and the program takes one of them.
  const PerReplica<Tensor> found = strategy.run([](ReplicaContext& ctx) { return found_by(ctx.replica_id()); });
  strategy.update_from(2, threshold, found[2]);
  right("update_from between steps", threshold.components());

  // 2. In the middle of a step: a merge call. All replicas come to it and bring their values; the function runs once,
  // outside of any replica, so that update_from is allowed there. Whoever found the best sets all.
  threshold.assign(torch::tensor(0.0));
  strategy.run([&](ReplicaContext& ctx) {
    auto best_sets_all = [&](Strategy& all, const PerReplica<Tensor>& values, const PerReplica<double>& scores) {
      lockstep::ReplicaId best = 0;
      for (int64_t r = 1; r < all.num_replicas(); ++r) {
        if (scores[r] > scores[best]) best = r;
      }
      all.update_from(best, threshold, values[best]);
    };
    ctx.merge_call(best_sets_all, found_by(ctx.replica_id()), score_of(ctx.replica_id()));
  });
  right("update_from in a merge call", threshold.components());

  // 3. Where it is always the first replica: all call assign, and the variable's aggregation takes the first one's.
  strategy.run([&](ReplicaContext& ctx) { threshold.assign(ctx, found_by(ctx.replica_id())); });
  right("only first replica", threshold.components());

  // 4. Where the value is for this step only: no variable at all.
  right("broadcast", strategy.run([](ReplicaContext& ctx) { return ctx.broadcast(2, found_by(ctx.replica_id())); }));
}
