// The values that a model had at some time, kept as variables, so that a checkpoint has them and a resume keeps them.
#pragma once

#include <string>
#include <vector>

#include "lockstep/train/trainer.h"

namespace lockstep::internal::inline train {

/// Its members are calls of all workers.
class KeptValues {
 public:
  /// Keeps the present values of the trainer's model, as "<prefix>/<variable>".
  KeptValues(const Trainer& trainer, const std::string& prefix);

  /// Keeps the present values in place of those of before.
  void keep() const;
  /// Gives the model what was kept.
  void restore() const;

 private:
  std::vector<Variable> model_;
  std::vector<Variable> kept_;
};

}  // namespace lockstep::internal::train
