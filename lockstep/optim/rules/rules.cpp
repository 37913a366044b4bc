#include "lockstep/optim/rules/rules.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/optim/rules/option_checks.h"

namespace lockstep::rules {

using internal::check_fraction;
using internal::check_not_negative;

namespace {

class Lion final : public UpdateRule {
 public:
  explicit Lion(const LionOptions& options) : options_(options) {
    check_fraction("rules::lion", ".beta1", options.beta1);
    check_fraction("rules::lion", ".beta2", options.beta2);
    check_not_negative("rules::lion", ".weight_decay", options.weight_decay);
  }
  std::string name() const override { return "Lion"; }
  std::string options() const override {
    return fmt::format("beta1 = {}, beta2 = {}, weight_decay = {}", options_.beta1, options_.beta2,
                       options_.weight_decay);
  }
  std::vector<SlotSpec> slots() const override { return {{.name = "momentum"}}; }
  void update(const RuleInput& in) const override {
    const auto& [beta1, beta2, weight_decay] = options_;
    const at::Tensor& momentum = in.slots[0];
    if (weight_decay != 0) in.weights.mul_(1 - in.learning_rate * weight_decay);
    in.weights.sub_((momentum * beta1).add_(in.gradient, 1 - beta1).sign_(), in.learning_rate);
    momentum.mul_(beta2).add_(in.gradient, 1 - beta2);
  }

 private:
  const LionOptions options_;
};

class Lamb final : public UpdateRule {
 public:
  explicit Lamb(const LambOptions& options) : options_(options) {
    check_fraction("rules::lamb", ".beta1", options.beta1);
    check_fraction("rules::lamb", ".beta2", options.beta2);
    check_not_negative("rules::lamb", ".epsilon", options.epsilon);
    check_not_negative("rules::lamb", ".weight_decay", options.weight_decay);
  }
  std::string name() const override { return "LAMB"; }
  std::string options() const override {
    return fmt::format("beta1 = {}, beta2 = {}, epsilon = {}, weight_decay = {}", options_.beta1, options_.beta2,
                       options_.epsilon, options_.weight_decay);
  }
  std::vector<SlotSpec> slots() const override { return {{.name = "exp_avg"}, {.name = "exp_avg_sq"}}; }
  bool elementwise() const override { return false; }
  void update(const RuleInput& in) const override {
    const auto& [beta1, beta2, epsilon, weight_decay] = options_;
    const auto t = static_cast<double>(in.step);
    in.slots[0].mul_(beta1).add_(in.gradient, 1 - beta1);
    in.slots[1].mul_(beta2).addcmul_(in.gradient, in.gradient, 1 - beta2);
    at::Tensor denominator = (in.slots[1] / (1 - std::pow(beta2, t))).sqrt_().add_(epsilon);
    at::Tensor change = (in.slots[0] / (1 - std::pow(beta1, t))).div_(denominator);
    if (weight_decay != 0) change.add_(in.weights, weight_decay);
    const double weights_norm = in.weights.norm().item<double>();
    const double change_norm = change.norm().item<double>();
    const double trust = weights_norm > 0 && change_norm > 0 ? weights_norm / change_norm : 1;
    in.weights.sub_(change, in.learning_rate * trust);
  }

 private:
  const LambOptions options_;
};

class Nadam final : public UpdateRule {
 public:
  explicit Nadam(const NadamOptions& options) : options_(options) {
    check_fraction("rules::nadam", ".beta1", options.beta1);
    check_fraction("rules::nadam", ".beta2", options.beta2);
    check_not_negative("rules::nadam", ".epsilon", options.epsilon);
    check_not_negative("rules::nadam", ".weight_decay", options.weight_decay);
    check_not_negative("rules::nadam", ".momentum_decay", options.momentum_decay);
  }
  std::string name() const override { return "NAdam"; }
  std::string options() const override {
    return fmt::format("beta1 = {}, beta2 = {}, epsilon = {}, weight_decay = {}, momentum_decay = {}", options_.beta1,
                       options_.beta2, options_.epsilon, options_.weight_decay, options_.momentum_decay);
  }
  std::vector<SlotSpec> slots() const override { return {{.name = "exp_avg"}, {.name = "exp_avg_sq"}}; }
  void update(const RuleInput& in) const override {
    const auto& [beta1, beta2, epsilon, weight_decay, momentum_decay] = options_;
    if (weight_decay != 0) in.gradient.add_(in.weights, weight_decay);
    in.slots[0].mul_(beta1).add_(in.gradient, 1 - beta1);
    in.slots[1].mul_(beta2).addcmul_(in.gradient, in.gradient, 1 - beta2);
    const at::Tensor denominator =
        (in.slots[1] / (1 - std::pow(beta2, static_cast<double>(in.step)))).sqrt_().add_(epsilon);
    const double product = product_of_momentums(in.step);
    const double of_gradient = (1 - momentum(in.step)) / (1 - product);
    const double next = momentum(in.step + 1);
    const double of_average = next / (1 - product * next);
    in.weights.addcdiv_(in.gradient, denominator, -in.learning_rate * of_gradient);
    in.weights.addcdiv_(in.slots[0], denominator, -in.learning_rate * of_average);
  }

 private:
  double momentum(int64_t step) const {
    const double exponent = static_cast<double>(step) * options_.momentum_decay;
    return options_.beta1 * (1 - 0.5 * std::pow(0.96, exponent));
  }
  /// Of all steps up to this one. Every block of a step asks for the same product, which would take that many
  /// multiplications each time.
  double product_of_momentums(int64_t step) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (step < known_step_) {
      known_step_ = 0;
      known_product_ = 1;
    }
    while (known_step_ < step) known_product_ *= momentum(++known_step_);
    return known_product_;
  }

  const NadamOptions options_;
  mutable std::mutex mutex_;
  mutable int64_t known_step_ = 0;    // guarded by mutex_
  mutable double known_product_ = 1;  // guarded by mutex_
};

}  // namespace

std::shared_ptr<const UpdateRule> lion(LionOptions options) { return std::make_shared<Lion>(options); }
std::shared_ptr<const UpdateRule> lamb(LambOptions options) { return std::make_shared<Lamb>(options); }
std::shared_ptr<const UpdateRule> nadam(NadamOptions options) { return std::make_shared<Nadam>(options); }

}  // namespace lockstep::rules
