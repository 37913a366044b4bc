// A step that writes a variable without saying how the replicas' values become one: what Lockstep says, and the
// choices.
#include <torch/types.h>

#include <iostream>
#include <stdexcept>
#include <string>

#include "lockstep/lockstep.h"

using lockstep::VariableAggregation;
using lockstep::VariableSynchronization;

// Makes a variable, lets each replica add the mistakes that it counted (replica 0: three, replica 1: five), and prints
// what comes of it.
void count_mistakes(const std::string& name, VariableSynchronization synchronization, VariableAggregation aggregation) {
  lockstep::MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}, .replicas = 2, .seed = 7});
  const auto mistakes = strategy.make_variable(
      torch::zeros({}),
      {.name = "mistakes", .trainable = false, .synchronization = synchronization, .aggregation = aggregation});
  std::cout << name << ": ";
  strategy.run([&](lockstep::ReplicaContext& ctx) {
    const double counted = ctx.replica_id() == 0 ? 3 : 5;
    mistakes.assign_add(ctx, torch::tensor(counted));
  });
  std::cout << "the replicas have";
  for (const torch::Tensor& component : mistakes.components()) std::cout << " " << component.item<double>();
  std::cout << ", and read() gives " << mistakes.read().item<double>() << "\n";
}

int main() {
  using enum VariableSynchronization;
  using enum VariableAggregation;

  std::cout << "broken\n";
  try {
    count_mistakes("on-write, no aggregation", kOnWrite, kNone);  // the defaults
    throw std::logic_error("this should have been an error");
  } catch (const lockstep::ReplicaError& error) {
    // What run() throws. Replicas that failed alike share one message, and std::rethrow_if_nested(error) gives the
    // UsageError of the first.
    std::cout << "ReplicaError: " << error.what() << "\n";
  }

  // On-write: replicas hold the same at any time. Their values meet in assign, assign_add and assign_sub.
  std::cout << "\nright, one value for all\n";
  count_mistakes("on-write, sum", kOnWrite, kSum);
  count_mistakes("on-write, mean", kOnWrite, kMean);
  count_mistakes("on-write, only first replica", kOnWrite, kOnlyFirstReplica);

  // On-read: each replica writes its own without meeting the others, and only read() brings them together. It is the
  // cheaper choice for what is written at each step and read once in an epoch.
  std::cout << "\nright, each replica its own\n";
  count_mistakes("on-read, sum", kOnRead, kSum);
  count_mistakes("on-read, mean", kOnRead, kMean);
}
