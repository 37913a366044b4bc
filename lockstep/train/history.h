// What a fit has logged: numbers by name, for each epoch.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// Numbers by name, such as "loss", "accuracy" and "val_loss". Those of a fit are reduced over all replicas and
/// workers, so that every worker has the same.
using Logs = std::map<std::string, double>;

/// The logs of each epoch's end, in the order of the epochs. It is part of a fit's checkpoints: a resumed fit has the
/// epochs of before too.
class History {
 public:
  /// One element for each epoch that has ended. Values of validation have "val_" before their names; epochs without
  /// validation do not have them.
  const std::vector<Logs>& epochs() const { return logs_; }
  /// The number of each of these epochs, from 0 or from FitOptions::initial_epoch.
  const std::vector<int64_t>& numbers() const { return numbers_; }
  /// Epoch and value, of each epoch that has this name in its logs; none where no epoch has it.
  std::vector<std::pair<int64_t, double>> of(const std::string& name) const;
  /// `{"epoch": [0, 1], "history": {"loss": [0.5, 0.25], "val_loss": [null, 0.3]}}`: each list has one value for each
  /// epoch, null where the epoch has none. NaN and infinities are the strings "NaN", "Infinity" and "-Infinity".
  nlohmann::json to_json() const;
  /// What to_json() gave. Throws a UsageError for any other value.
  static History from_json(const nlohmann::json& json);
  /// Adds the logs of an epoch's end.
  void add(int64_t epoch, Logs logs);

 private:
  std::vector<int64_t> numbers_;
  std::vector<Logs> logs_;
};

}  // namespace lockstep
