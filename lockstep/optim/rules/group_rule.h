// One optimizer's options, as arithmetic: which formula, which slots, and the numbers of each update.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/gradient/sparse_support.h"
#include "lockstep/optim/loops/update_block.h"
#include "lockstep/optim/rules/rule_options.h"
#include "lockstep/optim/rules/update_rule.h"

namespace lockstep::internal::inline optim {

/// The options that can be set between steps.
struct RuleSettings {
  double learning_rate = 0;
  double weight_decay = 0;
  double momentum = 0;  // 0 in rules that have none
  friend bool operator==(const RuleSettings&, const RuleSettings&) = default;
};

/// All results depend on the options alone, but for the settings.
class GroupRule {
 public:
  virtual ~GroupRule() = default;
  /// "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", or what a rule of the program's own calls itself.
  virtual const char* name() const = 0;
  virtual UpdateKind kind() const = 0;
  /// The program's own rule; null for those of torch::optim.
  virtual std::shared_ptr<const UpdateRule> own() const { return nullptr; }
  virtual std::vector<SlotSpec> slots() const = 0;
  /// The numbers of a variable's `step`-th update, counted from 1.
  Coefficients coefficients(int64_t step) const { return coefficients(step, now_.learning_rate); }
  virtual Coefficients coefficients(int64_t step, double learning_rate) const = 0;
  virtual SparseSupport sparse() const = 0;
  /// The numbers of an update of the rows that a sparse gradient has; only where sparse().rows.
  Coefficients row_coefficients(int64_t step) const { return row_coefficients(step, now_.learning_rate); }
  virtual Coefficients row_coefficients(int64_t step, double learning_rate) const {
    return coefficients(step, learning_rate);
  }
  /// All options but the learning rate, with the present settings, "momentum = 0.9, nesterov = false", for messages.
  virtual std::string options() const = 0;

  double learning_rate() const { return now_.learning_rate; }
  void set_learning_rate(double learning_rate) { now_.learning_rate = learning_rate; }
  const RuleSettings& settings() const { return now_; }
  /// Those of the options that it was made from.
  const RuleSettings& made_with() const { return made_with_; }
  /// None is checked.
  void set(const RuleSettings& settings) { now_ = settings; }
  /// Whether a momentum can be set: the rule has one, and was made with the slot for it.
  virtual bool takes_momentum() const { return false; }
  /// A UsageError for a momentum that cannot be set; it says what can.
  virtual void check_momentum(double momentum) const;
  /// A UsageError for a number that is negative or not finite, and for rules of the program's own, which have none.
  virtual void check_weight_decay(double weight_decay) const;

 protected:
  explicit GroupRule(const RuleSettings& settings) : made_with_(settings), now_(settings) {}

 private:
  const RuleSettings made_with_;
  RuleSettings now_;
};

/// LibTorch's options as a rule; a UsageError, naming the option, for values that torch::optim refuses.
std::unique_ptr<GroupRule> make_rule(const torch::optim::SGDOptions& options);
std::unique_ptr<GroupRule> make_rule(const torch::optim::AdamOptions& options);
std::unique_ptr<GroupRule> make_rule(const torch::optim::AdamWOptions& options);
std::unique_ptr<GroupRule> make_rule(const torch::optim::RMSpropOptions& options);
std::unique_ptr<GroupRule> make_rule(const torch::optim::AdagradOptions& options);

/// A UsageError for a rule that breaks what update_rule.h asks of it.
std::unique_ptr<GroupRule> make_rule(const UpdateRuleOptions& options);

/// The rules of an optimizer's groups with their learning rates and options, for messages; of many groups the first.
std::string text_of(const std::vector<std::unique_ptr<GroupRule>>& rules);

/// A UsageError for a learning rate that is negative or not finite.
void check_learning_rate(double learning_rate);

}  // namespace lockstep::internal::optim
