#include "lockstep/train/callbacks/monitor.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/train/fit.h"
#include "lockstep/train/numbers.h"

namespace lockstep::internal::inline train {

Monitor::Monitor(std::string name, Mode mode, double min_delta)
    : name_(std::move(name)), mode_(mode), min_delta_(std::abs(min_delta)) {}

void Monitor::begin(const Trainer& trainer) {
  best_.reset();
  higher_ = mode_ == Mode::kAuto ? Fit::of(trainer).is_higher_better(name_) : mode_ == Mode::kMax;
}

std::optional<double> Monitor::value_in(const Trainer& trainer, const Logs& logs, bool is_validation) const {
  const bool is_of_validation = name_.starts_with("val_") && trainer.fit_options().validate_every_steps > 0;
  if (is_validation != is_of_validation) return std::nullopt;
  const auto found = logs.find(is_validation ? name_.substr(4) : name_);
  return found == logs.end() ? std::nullopt : std::optional<double>(found->second);
}

// In float32, as Keras compares: so 0.7 is not better than 0.8 by more than 0.1.
bool Monitor::improves(double value, double other) const {
  const auto than = static_cast<float>(other);
  return higher_ ? static_cast<float>(value - min_delta_) > than : static_cast<float>(value + min_delta_) < than;
}

bool Monitor::reaches(double value, double goal) const { return higher_ ? value >= goal : value <= goal; }

bool Monitor::is_new_best(double value) {
  if (std::isnan(value) || (best_ && !improves(value, *best_))) return false;
  best_ = value;
  return true;
}

nlohmann::json Monitor::state() const { return best_ ? json_of(*best_) : nlohmann::json(); }

void Monitor::load(const nlohmann::json& state) {
  best_ = state.is_null() ? std::nullopt : std::optional<double>(number_of(state));
}

}  // namespace lockstep::internal::train
