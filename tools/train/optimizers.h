// The optimizers that the program's flags name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "tools/models/models.h"

namespace lockstep::tools {

using ReplicatedModel = Replicated<std::shared_ptr<Classifier>>;

/// The names that make_optimizer knows.
const std::vector<std::string>& optimizer_names();

/// An optimizer by its name; `learning_rate` 0 stands for its usual one.
Optimizer make_optimizer(Strategy& strategy, const ReplicatedModel& model, const std::string& name,
                         double learning_rate = 0);
Optimizer make_optimizer(Strategy& strategy, const std::vector<Variable>& variables, const std::string& name,
                         double learning_rate = 0);

/// Bytes that an update reads and writes for each float32 weight, besides its gradients.
int64_t update_bytes(const std::string& name);

}  // namespace lockstep::tools
