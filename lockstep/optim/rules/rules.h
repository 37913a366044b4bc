// Update rules that torch::optim does not have, for UpdateRuleOptions.
#pragma once

#include <memory>

#include "lockstep/optim/rules/update_rule.h"

namespace lockstep::rules {

// Each throws a UsageError (LS-OPTION) for a decay outside of [0, 1), and for other numbers that are negative or not
// finite.

struct LionOptions {
  double beta1 = 0.9;   // the share of the momentum in the update's sign
  double beta2 = 0.99;  // the share of the momentum that stays
  double weight_decay = 0;
};
/// Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2. Slot "momentum".
std::shared_ptr<const UpdateRule> lion(LionOptions options = {});

struct LambOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0;
};
/// You et al., "Large Batch Optimization for Deep Learning" (2020), algorithm 2, with bias correction: Adam's step of a
/// variable, scaled to the norm of its weights; not scaled where either norm is 0. Slots "exp_avg" and "exp_avg_sq".
std::shared_ptr<const UpdateRule> lamb(LambOptions options = {});

struct NadamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;        // times the weights, added to the gradient
  double momentum_decay = 0.004;  // how fast the momentum comes to beta1
};
/// torch.optim.NAdam of Python: Dozat, "Incorporating Nesterov Momentum into Adam" (2016). Slots "exp_avg" and
/// "exp_avg_sq".
std::shared_ptr<const UpdateRule> nadam(NadamOptions options = {});

}  // namespace lockstep::rules
