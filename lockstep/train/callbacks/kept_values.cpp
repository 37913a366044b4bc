#include "lockstep/train/callbacks/kept_values.h"

namespace lockstep::internal::inline train {

namespace {

void copy(const Variable& from, const Variable& to) {
  if (from.synchronization() == VariableSynchronization::kOnRead) {
    to.assign(from.components());
  } else {
    to.assign(from.read());
  }
}

}  // namespace

KeptValues::KeptValues(const Trainer& trainer, const std::string& prefix) : model_(trainer.variables()) {
  for (const Variable& variable : model_) {
    const bool is_on_read = variable.synchronization() == VariableSynchronization::kOnRead;
    const at::Tensor value = is_on_read ? *variable.components().begin() : variable.read();
    kept_.push_back(trainer.strategy().make_variable(value, {.name = prefix + "/" + variable.name(),
                                                             .trainable = false,
                                                             .synchronization = variable.synchronization(),
                                                             .aggregation = variable.aggregation()}));
  }
  keep();
}

void KeptValues::keep() const {
  for (std::size_t i = 0; i < kept_.size(); ++i) copy(model_[i], kept_[i]);
}

void KeptValues::restore() const {
  for (std::size_t i = 0; i < kept_.size(); ++i) copy(kept_[i], model_[i]);
}

}  // namespace lockstep::internal::train
