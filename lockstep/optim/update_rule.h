// One optimizer's options, as arithmetic: which formula, which slots, and the numbers of each update.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/rule_options.h"
#include "lockstep/optim/sparse_support.h"
#include "lockstep/optim/update_block.h"

namespace lockstep::internal {

/// A value that an optimizer keeps for each element of a variable, named as in torch::optim.
struct SlotSpec {
  std::string name;
  double initial = 0;
};

/// All results depend on the options alone, but for the learning rate, which can be set.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// "SGD", "Adam", "AdamW", "RMSprop" or "Adagrad".
  virtual const char* name() const = 0;
  virtual UpdateKind kind() const = 0;
  virtual std::vector<SlotSpec> slots() const = 0;
  /// The numbers of a variable's `step`-th update, counted from 1.
  Coefficients coefficients(int64_t step) const { return coefficients(step, learning_rate_); }
  virtual Coefficients coefficients(int64_t step, double learning_rate) const = 0;
  virtual SparseSupport sparse() const = 0;
  /// The numbers of an update of the rows that a sparse gradient has; only where sparse().rows.
  Coefficients row_coefficients(int64_t step) const { return row_coefficients(step, learning_rate_); }
  virtual Coefficients row_coefficients(int64_t step, double learning_rate) const {
    return coefficients(step, learning_rate);
  }

  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double learning_rate) { learning_rate_ = learning_rate; }

 protected:
  explicit UpdateRule(double learning_rate) : learning_rate_(learning_rate) {}

 private:
  double learning_rate_;
};

/// LibTorch's options as a rule; a UsageError, naming the option, for values that torch::optim refuses.
std::unique_ptr<UpdateRule> make_rule(const torch::optim::SGDOptions& options);
std::unique_ptr<UpdateRule> make_rule(const torch::optim::AdamOptions& options);
std::unique_ptr<UpdateRule> make_rule(const torch::optim::AdamWOptions& options);
std::unique_ptr<UpdateRule> make_rule(const torch::optim::RMSpropOptions& options);
std::unique_ptr<UpdateRule> make_rule(const torch::optim::AdagradOptions& options);

/// A UsageError for a learning rate that is negative or not finite.
void check_learning_rate(double learning_rate);

}  // namespace lockstep::internal
