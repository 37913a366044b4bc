#include "tools/train/optimizers.h"

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

namespace {

/// `of`: a model or a list of variables.
template <class Of>
Optimizer make(Strategy& strategy, const Of& of, const std::string& name, double learning_rate) {
  namespace optim = torch::optim;
  const auto rate = [&](double usual) { return learning_rate > 0 ? learning_rate : usual; };
  if (name == "sgd") return strategy.make_optimizer(of, optim::SGDOptions(rate(0.1)));
  if (name == "momentum") return strategy.make_optimizer(of, optim::SGDOptions(rate(0.02)).momentum(0.9));
  if (name == "adamw") return strategy.make_optimizer(of, optim::AdamWOptions(rate(1e-3)));
  if (name == "rmsprop") return strategy.make_optimizer(of, optim::RMSpropOptions(rate(1e-3)));
  if (name == "adagrad") return strategy.make_optimizer(of, optim::AdagradOptions(rate(1e-2)));
  return strategy.make_optimizer(of, optim::AdamOptions(rate(1e-3)));
}

}  // namespace

Optimizer make_optimizer(Strategy& strategy, const ReplicatedModel& model, const std::string& name,
                         double learning_rate) {
  return make(strategy, model, name, learning_rate);
}

Optimizer make_optimizer(Strategy& strategy, const std::vector<Variable>& variables, const std::string& name,
                         double learning_rate) {
  return make(strategy, variables, name, learning_rate);
}

int64_t update_bytes(const std::string& name) {
  if (name == "sgd") return 8;  // the weight, read and written; the others keep one or two slots
  return name == "adam" || name == "adamw" ? 24 : 16;
}

}  // namespace lockstep::tools
