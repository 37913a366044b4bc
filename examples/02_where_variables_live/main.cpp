// One training program under each strategy, with a table of where its variables live.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "lockstep/lockstep.h"

using lockstep::StrategyOptions;
using torch::Tensor;
using State = std::map<std::string, Tensor>;

class Net : public torch::nn::Module {
 public:
  // SyncBatchNorm takes its statistics over the whole batch, so that the result does not depend on the replicas.
  Net()
      : norm_(register_module("norm", lockstep::SyncBatchNorm(8))),
        out_(register_module("out", torch::nn::Linear(8, 1))) {}
  Tensor forward(const Tensor& input) { return out_->forward(norm_->forward(input)); }

 private:
  lockstep::SyncBatchNorm norm_;
  torch::nn::Linear out_;
};

// The program. Nothing in it knows which strategy it runs under. Gives the model's values in the end.
State train(lockstep::Strategy& strategy) {
  const auto model = strategy.make_module([] { return std::make_shared<Net>(); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.01).momentum(0.9));
  // How many samples each replica saw: each writes its own, and a read adds them.
  const auto seen = strategy.make_variable(torch::zeros({}, torch::kLong),
                                           {.name = "seen",
                                            .trainable = false,
                                            .synchronization = lockstep::VariableSynchronization::kOnRead,
                                            .aggregation = lockstep::VariableAggregation::kSum});

  const Tensor input = torch::arange(32 * 8).remainder(11).to(torch::kFloat).view({32, 8});
  const Tensor target = input.sum(1, /*keepdim=*/true) / 8;
  const auto data = strategy.distribute(lockstep::data::from_tensors(input, target), {.global_batch = 16});
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      strategy.run(batch, [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& part) {
        const Tensor error = model(ctx)->forward(part.input) - part.target;
        ctx.scale_loss(error.pow(2).mean()).backward();
        optimizer.step(ctx);
        seen.assign_add(ctx, torch::tensor(part.size()));
      });
    }
  }

  std::cout << strategy.describe_variables();
  std::cout << "samples seen:";
  for (const Tensor& component : seen.components()) std::cout << " " << component.item<int64_t>();
  std::cout << ", together " << seen.read().item<int64_t>() << "\n";
  return model.state();
}

// Whether two runs ended with the same values, but for rounding.
bool close(const State& one, const State& other) {
  for (const auto& [name, value] : one) {
    if (!torch::allclose(value, other.at(name), /*rtol=*/1e-4, /*atol=*/1e-5)) return false;
  }
  return true;
}

State run(const std::string& title, const std::string& name, const StrategyOptions& options) {
  std::cout << "--- " << title << " ---\n";
  return train(*lockstep::make_strategy(name, options));
}

int main() {
  StrategyOptions options{.devices = {"cpu:0", "cpu:1"}, .replicas = 4, .seed = 7};
  const State expected = run("one-device", "one-device", {.seed = options.seed});
  const auto compare = [&](const State& state) {
    if (!close(state, expected)) throw std::logic_error("the values are not those of one device");
    std::cout << "values: those of one device, but for rounding\n";
  };
  for (const std::string& name : lockstep::strategy_names()) {
    if (name == "one-device" || name == "parameter-server") continue;  // the last one schedules steps: see 19
    std::cout << "\n";
    compare(run(name + ", 4 replicas", name, options));
  }
  std::cout << "\n";
  options.copies = lockstep::Copies::kPerReplica;
  compare(run("mirrored, 4 replicas, Copies::kPerReplica", "mirrored", options));
}
