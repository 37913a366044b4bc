#include "tools/optimizers.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace lockstep::tools {

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names{"sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad"};
  return names;
}

Optimizer make_optimizer(Strategy& strategy, const ReplicatedModel& model, const std::string& name,
                         double learning_rate) {
  namespace optim = torch::optim;
  const auto rate = [&](double usual) { return learning_rate > 0 ? learning_rate : usual; };
  if (name == "sgd") return strategy.make_optimizer(model, optim::SGDOptions(rate(0.1)));
  if (name == "momentum") return strategy.make_optimizer(model, optim::SGDOptions(rate(0.02)).momentum(0.9));
  if (name == "adamw") return strategy.make_optimizer(model, optim::AdamWOptions(rate(1e-3)));
  if (name == "rmsprop") return strategy.make_optimizer(model, optim::RMSpropOptions(rate(1e-3)));
  if (name == "adagrad") return strategy.make_optimizer(model, optim::AdagradOptions(rate(1e-2)));
  return strategy.make_optimizer(model, optim::AdamOptions(rate(1e-3)));
}

}  // namespace lockstep::tools
