// Models, data and loops that several tests train.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/errors.h"

namespace lockstep::testing {

/// "cpu:0", "cpu:1", ...
std::vector<std::string> lanes(int count);

/// A model of the zoo: gives one loss, a mean over the samples of a part.
class Program : public torch::nn::Module {
 public:
  virtual torch::Tensor loss(const torch::Tensor& input, const torch::Tensor& target) = 0;
};

/// "mlp" (dropout), "cnn" (batch normalisation), "twice" (a weight used twice, and one that is never used), "embedding"
/// (with a tied output layer and dropout), "double" (float64).
std::shared_ptr<Program> make_program(const std::string& name);

/// Samples for a program: made deterministically.
Dataset make_data(const std::string& program, int64_t count);

/// What a training run is.
struct Plan {
  std::string program = "mlp";
  std::string optimizer = "adamw";  // sgd, momentum, nesterov, adam, amsgrad, adamw, rmsprop, centered, adagrad
  int64_t replicas = 4;
  int lanes = 1;
  Copies copies = Copies::kPerMemory;
  uint64_t seed = 7;
  int steps = 20;
  int64_t global_batch = 22;
  int64_t samples = 100;  // not a multiple of the batch: each epoch ends with a short one
  int accumulate = 1;     // micro-batches of a step
  double clip = 0;        // 0: none
  bool evaluate_between = false;
  int threads_per_replica = 1;
  bool captured = false;  // the step is recorded and replayed
};

/// Everything that a run leaves behind, as digests.
struct Outcome {
  std::string weights;
  std::string optimizer;
  std::string state;
  std::vector<double> losses;
  bool operator==(const Outcome&) const = default;
};

/// Makes the optimizer that a plan names.
Optimizer make_optimizer(Strategy& strategy, const Replicated<std::shared_ptr<Program>>& model,
                         const std::string& name);

/// Trains by the plan and gives what came out.
Outcome train(const Plan& plan);
/// The same on a strategy that has the plan's replicas; lanes, copies, seed and threads are the strategy's own.
Outcome train(Strategy& strategy, const Plan& plan);
/// The same; says how many calls of the step were replayed.
Outcome train(Strategy& strategy, const Plan& plan, int64_t& replayed);

/// Prints a plan, for parameterised tests.
std::ostream& operator<<(std::ostream& stream, const Plan& plan);
/// Prints the digests' first digits.
std::ostream& operator<<(std::ostream& stream, const Outcome& outcome);

}  // namespace lockstep::testing
