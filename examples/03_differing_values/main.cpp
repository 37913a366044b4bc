// Values that differ between replicas where they must not: what Lockstep says, and the right way.
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

#include "lockstep/lockstep.h"

using torch::nn::Linear;

// Does something that must not work, and prints what its user gets to see.
void broken(const std::function<void()>& mistake) {
  try {
    mistake();
  } catch (const lockstep::DivergenceError& error) {
    std::cout << "broken: DivergenceError: " << error.what() << "\n";
    return;
  }
  throw std::logic_error("this should have been an error");
}

// Prints whether every replica has the same bits.
void right(const std::string& how, const lockstep::Variable& variable) {
  const auto components = variable.components();  // one tensor for each replica
  for (const torch::Tensor& component : components) {
    if (!torch::equal(component, components[0])) throw std::logic_error("replicas differ");
  }
  std::cout << "right:  " << how << ": '" << variable.name() << "' is equal on all " << components.size()
            << " replicas\n";
}

// Prints what each replica has.
void right(const std::string& how, const lockstep::PerReplica<torch::Tensor>& values) {
  std::cout << "right:  " << how << ":";
  for (const torch::Tensor& value : values) std::cout << " " << value.item<double>();
  std::cout << "\n";
}

// A layer whose weights are all this number.
Linear filled_with(double number) {
  Linear layer(3, 1);
  torch::nn::init::constant_(layer->weight, number);
  return layer;
}

int main() {
  lockstep::MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}, .replicas = 4, .seed = 7});

  std::cout << "1. Initial values from the program's own generator\n";
  std::mt19937 generator(std::random_device{}());
  std::normal_distribution<double> normal;
  // The factory is called once for each replica, and each call draws another number.
  broken([&] { strategy.make_module([&] { return filled_with(normal(generator)); }); });
  {
    // LibTorch's own random operators give every replica the same: they draw from a stream that depends on the
    // strategy's seed and the module's name alone. Its layers use them; so a plain Linear is right too.
    const auto model = strategy.make_module([] {
      Linear layer(3, 1);
      torch::nn::init::normal_(layer->weight);
      return layer;
    });
    right("drawn by LibTorch", model.variables()[0]);
  }
  {
    const double number = normal(generator);  // once, before the factory
    const auto model = strategy.make_module([&] { return filled_with(number); });
    right("drawn once, before the factory", model.variables()[0]);
  }

  std::cout << "\n2. Values that only the first replica gets\n";
  const torch::Tensor pretrained = torch::full({1, 3}, 0.5);
  bool is_first = true;
  broken([&] { strategy.make_module([&] { return filled_with(std::exchange(is_first, false) ? 0.5 : 0.0); }); });
  {
    const auto model = strategy.make_module([] { return Linear(3, 1); });
    model.load({{"weight", pretrained}, {"bias", torch::zeros({1})}});  // all replicas at once
    right("made alike, then loaded", model.variables()[0]);
  }

  std::cout << "\n3. A variable that is given another value for each replica\n";
  const auto measured =  // 19 on replica 0, 21, 23, 25
      strategy.per_replica([](lockstep::ReplicaId r) { return torch::tensor(19.0 + 2.0 * static_cast<double>(r)); });
  const auto temperature = strategy.make_variable(torch::tensor(20.0), {.name = "temperature"});
  broken([&] { temperature.assign(measured); });
  right("nothing was written", temperature.components());
  temperature.assign(strategy.reduce(lockstep::Reduction::kMean, measured));
  right("their mean for all", temperature.components());
  strategy.update_from(2, temperature, measured[2]);
  right("replica 2's for all", temperature.components());
  // Each replica keeps its own where the variable says so; read() then gives the mean.
  const auto own =
      strategy.make_variable(torch::tensor(20.0), {.name = "own",
                                                   .synchronization = lockstep::VariableSynchronization::kOnRead,
                                                   .aggregation = lockstep::VariableAggregation::kMean});
  own.assign(measured);
  right("each its own", own.components());
}
