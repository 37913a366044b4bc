// The coefficients of each rule's formula, after torch/csrc/api/src/optim/{sgd,adam,adamw,rmsprop,adagrad}.cpp.
#include "lockstep/optim/rules/group_rule.h"

#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/optim/rules/option_checks.h"

namespace lockstep::internal::inline optim {

namespace {

/// For a rule that LibTorch lets have sparse gradients without weight decay alone.
SparseSupport without_decay(const char* optimizer, double weight_decay, SparseSupport support) {
  if (weight_decay == 0) return support;
  return {.refused = std::string(optimizer) + " with weight_decay"};
}

/// The settings of options without a momentum.
template <class Options>
RuleSettings settings_of(const Options& options) {
  return {.learning_rate = options.lr(), .weight_decay = options.weight_decay()};
}
template <class Options>
RuleSettings with_momentum(const Options& options) {
  return {.learning_rate = options.lr(), .weight_decay = options.weight_decay(), .momentum = options.momentum()};
}

/// Of a rule that has a momentum, and a slot for it where it was made with one above 0.
void check_momentum_of(const GroupRule& rule, double momentum) {
  if (rule.takes_momentum()) return check_not_negative(rule.name(), "momentum", momentum);
  throw UsageError(
      "LS-OPTION",
      fmt::format("a momentum was set of {}, which was made without one and so has no buffer for it", rule.name()),
      "make the optimizer with a momentum above 0; then 0 can be set too");
}

class SgdRule final : public GroupRule {
 public:
  explicit SgdRule(const torch::optim::SGDOptions& options) : GroupRule(with_momentum(options)), options_(options) {
    check_not_negative(name(), "momentum", options.momentum());
    check_not_negative(name(), "weight_decay", options.weight_decay());
    require_option(!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0), name(),
                   "nesterov with dampening", options.dampening(),
                   "Nesterov momentum needs a momentum and no dampening");
  }
  const char* name() const override { return "SGD"; }
  std::string options() const override {
    return fmt::format("momentum = {}, dampening = {}, weight_decay = {}, nesterov = {}", settings().momentum,
                       options_.dampening(), settings().weight_decay, options_.nesterov());
  }
  UpdateKind kind() const override {
    if (options_.momentum() == 0) return UpdateKind::kSgd;
    return options_.nesterov() ? UpdateKind::kSgdNesterov : UpdateKind::kSgdMomentum;
  }
  std::vector<SlotSpec> slots() const override {
    if (options_.momentum() == 0) return {};
    return {{"momentum_buffer"}};
  }
  bool takes_momentum() const override { return made_with().momentum != 0; }
  void check_momentum(double momentum) const override {
    check_momentum_of(*this, momentum);
    // torch::optim puts the first gradient into the buffer without dampening, also where updates without a momentum
    // came before.
    require_option(momentum != 0 || options_.dampening() == 0, name(), "momentum 0 with dampening",
                   options_.dampening(), "set a momentum above 0, or make the optimizer without dampening");
  }
  Coefficients coefficients(int64_t step, double learning_rate) const override {
    Coefficients c;
    c.learning_rate = learning_rate;
    c.weight_decay = settings().weight_decay;
    // The first update puts the gradient itself into the buffer, without dampening.
    c.keep_first = step == 1 ? 0 : settings().momentum;
    c.take_first = step == 1 ? 1 : 1 - options_.dampening();
    c.momentum = settings().momentum;
    return c;
  }
  SparseSupport sparse() const override {
    // The buffer moves all rows that ever had a gradient.
    const bool rows = options_.momentum() == 0;
    return without_decay(name(), settings().weight_decay, {.rows = rows, .dense = true, .refused = {}});
  }

 private:
  const torch::optim::SGDOptions options_;
};

/// Adam and AdamW, which differ in where the weight decay goes.
template <class Options, bool kDecoupled>
class AdamRule final : public GroupRule {
 public:
  explicit AdamRule(const Options& options) : GroupRule(settings_of(options)), options_(options) {
    check_fraction(name(), "betas[0]", std::get<0>(options.betas()));
    check_fraction(name(), "betas[1]", std::get<1>(options.betas()));
    check_not_negative(name(), "eps", options.eps());
    check_not_negative(name(), "weight_decay", options.weight_decay());
  }
  const char* name() const override { return kDecoupled ? "AdamW" : "Adam"; }
  std::string options() const override {
    const auto [beta1, beta2] = options_.betas();
    return fmt::format("betas[0] = {}, betas[1] = {}, eps = {}, weight_decay = {}, amsgrad = {}", beta1, beta2,
                       options_.eps(), settings().weight_decay, options_.amsgrad());
  }
  UpdateKind kind() const override {
    if (kDecoupled) return options_.amsgrad() ? UpdateKind::kAdamWAmsgrad : UpdateKind::kAdamW;
    return options_.amsgrad() ? UpdateKind::kAdamAmsgrad : UpdateKind::kAdam;
  }
  std::vector<SlotSpec> slots() const override {
    std::vector<SlotSpec> slots{{"exp_avg"}, {"exp_avg_sq"}};
    if (options_.amsgrad()) slots.push_back({"max_exp_avg_sq"});
    return slots;
  }
  Coefficients coefficients(int64_t step, double learning_rate) const override {
    const auto [beta1, beta2] = options_.betas();
    const auto t = static_cast<double>(step);
    Coefficients c;
    c.learning_rate = learning_rate / (1 - std::pow(beta1, t));
    c.weight_decay = kDecoupled ? 1 - learning_rate * settings().weight_decay : settings().weight_decay;
    c.keep_first = beta1;
    c.take_first = 1 - beta1;
    c.keep_second = beta2;
    c.take_second = 1 - beta2;
    c.root_scale = 1 / std::sqrt(1 - std::pow(beta2, t));
    c.epsilon = options_.eps();
    return c;
  }
  SparseSupport sparse() const override {
    if (kDecoupled) return {.refused = name()};
    if (options_.amsgrad()) return {.refused = "Adam with amsgrad"};
    return without_decay(name(), settings().weight_decay, {.rows = true, .dense = false, .refused = {}});
  }
  /// torch.optim.SparseAdam's: epsilon is added before the second bias correction, and not after it.
  Coefficients row_coefficients(int64_t step, double learning_rate) const override {
    Coefficients c = coefficients(step, learning_rate);
    c.learning_rate /= c.root_scale;
    c.root_scale = 1;
    return c;
  }

 private:
  const Options options_;
};

class RmspropRule final : public GroupRule {
 public:
  explicit RmspropRule(const torch::optim::RMSpropOptions& options)
      : GroupRule(with_momentum(options)), options_(options) {
    check_not_negative(name(), "alpha", options.alpha());
    check_not_negative(name(), "eps", options.eps());
    check_not_negative(name(), "momentum", options.momentum());
    check_not_negative(name(), "weight_decay", options.weight_decay());
  }
  const char* name() const override { return "RMSprop"; }
  std::string options() const override {
    return fmt::format("alpha = {}, eps = {}, weight_decay = {}, momentum = {}, centered = {}", options_.alpha(),
                       options_.eps(), settings().weight_decay, settings().momentum, options_.centered());
  }
  UpdateKind kind() const override {
    if (options_.centered()) {
      return options_.momentum() > 0 ? UpdateKind::kRmspropCenteredMomentum : UpdateKind::kRmspropCentered;
    }
    return options_.momentum() > 0 ? UpdateKind::kRmspropMomentum : UpdateKind::kRmsprop;
  }
  std::vector<SlotSpec> slots() const override {
    std::vector<SlotSpec> slots{{"square_avg"}};
    if (options_.centered()) slots.push_back({"grad_avg"});
    if (options_.momentum() > 0) slots.push_back({"momentum_buffer"});
    return slots;
  }
  bool takes_momentum() const override { return made_with().momentum > 0; }
  void check_momentum(double momentum) const override { check_momentum_of(*this, momentum); }
  Coefficients coefficients(int64_t, double learning_rate) const override {
    Coefficients c;
    c.learning_rate = learning_rate;
    c.weight_decay = settings().weight_decay;
    c.keep_second = options_.alpha();
    c.take_second = 1 - options_.alpha();
    c.momentum = settings().momentum;
    c.epsilon = options_.eps();
    return c;
  }
  SparseSupport sparse() const override { return {.refused = name()}; }

 private:
  const torch::optim::RMSpropOptions options_;
};

class AdagradRule final : public GroupRule {
 public:
  explicit AdagradRule(const torch::optim::AdagradOptions& options)
      : GroupRule(settings_of(options)), options_(options) {
    check_not_negative(name(), "lr_decay", options.lr_decay());
    check_not_negative(name(), "weight_decay", options.weight_decay());
    check_not_negative(name(), "initial_accumulator_value", options.initial_accumulator_value());
    check_not_negative(name(), "eps", options.eps());
  }
  const char* name() const override { return "Adagrad"; }
  std::string options() const override {
    return fmt::format("lr_decay = {}, weight_decay = {}, initial_accumulator_value = {}, eps = {}",
                       options_.lr_decay(), settings().weight_decay, options_.initial_accumulator_value(),
                       options_.eps());
  }
  UpdateKind kind() const override { return UpdateKind::kAdagrad; }
  std::vector<SlotSpec> slots() const override { return {{"sum", options_.initial_accumulator_value()}}; }
  Coefficients coefficients(int64_t step, double learning_rate) const override {
    Coefficients c;
    c.learning_rate = learning_rate / (1 + static_cast<double>(step - 1) * options_.lr_decay());
    c.weight_decay = settings().weight_decay;
    c.epsilon = options_.eps();
    return c;
  }
  SparseSupport sparse() const override {
    return without_decay(name(), settings().weight_decay, {.rows = true, .dense = true, .refused = {}});
  }

 private:
  const torch::optim::AdagradOptions options_;
};

/// A rule of the program's own.
class OwnRule final : public GroupRule {
 public:
  explicit OwnRule(const UpdateRuleOptions& options)
      : GroupRule({.learning_rate = options.learning_rate}), rule_(options.rule) {
    const auto refuse = [](std::string what, const char* remedy) {
      throw UsageError("LS-OPTION", std::move(what), remedy);
    };
    if (!rule_) refuse("an optimizer was given UpdateRuleOptions without a rule", "set .rule");
    name_ = rule_->name();
    options_ = rule_->options();
    if (name_.empty()) {
      refuse("an optimizer was given a rule whose name() is empty", "name it: checkpoints tell rules apart by names");
    }
    std::set<std::string> taken{"step"};
    for (const SlotSpec& slot : rule_->slots()) {
      const bool is_plain = !slot.name.empty() && slot.name.find('/') == std::string::npos;
      if (is_plain && taken.insert(slot.name).second) continue;
      refuse(fmt::format("rule '{}' has a slot named '{}'", name_, slot.name),
             "give each slot a name of its own, without a slash and other than \"step\"");
    }
  }
  const char* name() const override { return name_.c_str(); }
  UpdateKind kind() const override { return UpdateKind::kOwn; }
  std::shared_ptr<const UpdateRule> own() const override { return rule_; }
  std::vector<SlotSpec> slots() const override { return rule_->slots(); }
  std::string options() const override {
    const char* const takes = rule_->elementwise() ? "elements" : "whole variables";
    return fmt::format("{}{}a rule of the program's own for {}", options_, options_.empty() ? "" : ", ", takes);
  }
  Coefficients coefficients(int64_t step, double learning_rate) const override {
    Coefficients c;
    c.learning_rate = learning_rate;
    c.step = static_cast<double>(step);
    return c;
  }
  SparseSupport sparse() const override { return {.refused = fmt::format("the rule '{}'", name_)}; }
  void check_weight_decay(double /*weight_decay*/) const override {
    throw UsageError("LS-OPTION", fmt::format("a weight decay was set of rule '{}', which has none", name_),
                     "decay weights in the rule's update(), by a number that it was made with");
  }

 private:
  const std::shared_ptr<const UpdateRule> rule_;
  std::string name_;
  std::string options_;
};

template <class Rule, class Options>
std::unique_ptr<GroupRule> make_checked(const Options& options) {
  check_learning_rate(options.lr());
  return std::make_unique<Rule>(options);
}

}  // namespace

void GroupRule::check_momentum(double /*momentum*/) const {
  throw UsageError("LS-OPTION", fmt::format("a momentum was set of {}, which has none", name()),
                   own() ? "set its learning rate, or make the rule with another number"
                         : fmt::format("set what {} has: its learning rate and its weight decay", name()));
}

void GroupRule::check_weight_decay(double weight_decay) const {
  check_not_negative(name(), "weight_decay", weight_decay);
}

std::string text_of(const std::vector<std::unique_ptr<GroupRule>>& rules) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, rules.size()); ++i) {
    if (i > 0) text += fmt::format("; group {}: ", i);
    text += fmt::format("{} of learning rate {}, {}", rules[i]->name(), rules[i]->learning_rate(), rules[i]->options());
  }
  return rules.size() > kShown ? fmt::format("{}; and {} more groups", text, rules.size() - kShown) : text;
}

void check_learning_rate(double learning_rate) { check_not_negative("an optimizer", "learning rate", learning_rate); }

std::unique_ptr<GroupRule> make_rule(const torch::optim::SGDOptions& options) { return make_checked<SgdRule>(options); }
std::unique_ptr<GroupRule> make_rule(const torch::optim::AdamOptions& options) {
  return make_checked<AdamRule<torch::optim::AdamOptions, false>>(options);
}
std::unique_ptr<GroupRule> make_rule(const torch::optim::AdamWOptions& options) {
  return make_checked<AdamRule<torch::optim::AdamWOptions, true>>(options);
}
std::unique_ptr<GroupRule> make_rule(const torch::optim::RMSpropOptions& options) {
  return make_checked<RmspropRule>(options);
}
std::unique_ptr<GroupRule> make_rule(const torch::optim::AdagradOptions& options) {
  return make_checked<AdagradRule>(options);
}
std::unique_ptr<GroupRule> make_rule(const UpdateRuleOptions& options) {
  check_learning_rate(options.learning_rate);
  return std::make_unique<OwnRule>(options);
}

}  // namespace lockstep::internal::optim
