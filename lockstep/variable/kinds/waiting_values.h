// Values that were there before what they belong to: a restored checkpoint's, for variables that are made later.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace lockstep {
struct StateItem;
class Variable;
}  // namespace lockstep

namespace lockstep::internal::inline variable {

class VariableState;

/// Asked for each variable, optimizer and named data set that a strategy makes. Where a function throws, what was to be
/// made is not made. Calls are those of the strategy's own CallScopes, or of a meeting in which all replicas are at
/// rest; on several workers all of them make the same ones, but for data sets.
class WaitingValues {
 public:
  virtual ~WaitingValues() = default;
  /// Throws the UsageErrors of give(), and sets nothing: for variables that are made together.
  virtual void check(const std::shared_ptr<VariableState>& variable) = 0;
  /// Throws a UsageError where values of these slots' variables wait for an optimizer of this name that was not the
  /// variables' first: slots are called by the order in which optimizers are made.
  virtual void check_order(const std::string& optimizer, const std::vector<Variable>& slots) = 0;
  /// Sets a variable that was made just now, where a value waits for it. A UsageError for one of another form.
  virtual void give(const std::shared_ptr<VariableState>& variable) = 0;
  /// Sets those items that are no variables and for which a value waits: after an optimizer or a named data set was
  /// made.
  virtual void give_to_items(const std::vector<StateItem>& items) = 0;
};

}  // namespace lockstep::internal::variable
