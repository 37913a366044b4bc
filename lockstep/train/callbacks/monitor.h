// A number of the logs that a callback watches, and the best that it has been.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lockstep/train/callbacks.h"

namespace lockstep::internal::inline train {

class Monitor {
 public:
  Monitor(std::string name, Mode mode, double min_delta);

  const std::string& name() const { return name_; }
  /// A fit begins: finds out what an improvement is.
  void begin(const Trainer& trainer);
  /// The number, where on_epoch_end's logs, or, with `is_validation`, on_evaluate_end's, are those to look at.
  std::optional<double> value_in(const Trainer& trainer, const Logs& logs, bool is_validation) const;
  /// Whether `value` is better than `other` by more than the least difference. NaN never is.
  bool improves(double value, double other) const;
  /// Whether `value` is as good as `goal`.
  bool reaches(double value, double goal) const;
  /// Whether it is better than the best, which it is from then on.
  bool is_new_best(double value);
  const std::optional<double>& best() const { return best_; }
  void set_best(std::optional<double> best) { best_ = best; }
  nlohmann::json state() const;
  void load(const nlohmann::json& state);

 private:
  const std::string name_;
  const Mode mode_;
  const double min_delta_;
  bool higher_ = false;
  std::optional<double> best_;
};

}  // namespace lockstep::internal::train
