// What is made from variables' values and kept beside them, as moving averages are: it must hear where other values are
// loaded into its variables.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace lockstep::internal::inline variable {

class VariableState;

class DerivedState {
 public:
  virtual ~DerivedState() = default;
  /// These variables have values that were loaded: what was made from each is as if it were made now. Outside of steps.
  virtual void start_anew(const std::set<const VariableState*>& loaded) = 0;
  /// The names of the variables that are made from this one; empty where there are none.
  virtual std::vector<std::string> made_from(const VariableState& variable) const = 0;
};

/// All of one strategy. Used as VariableRegistry is.
class DerivedStates {
 public:
  void add(std::weak_ptr<DerivedState> derived);
  void start_anew(const std::set<const VariableState*>& loaded) const;
  std::vector<std::string> made_from(const VariableState& variable) const;

 private:
  std::vector<std::weak_ptr<DerivedState>> all_;
};

}  // namespace lockstep::internal::variable
