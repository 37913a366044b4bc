// The rules that the library builds on the door for programs' own, against their formulas in plain numbers.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/optim/own_rule.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using testing::step;

struct Numbers {
  double w = 1;
  double m = 0;
  double v = 0;
};

double gradient_at(int k) { return std::sin(1.0 + k); }

double trained_by(const std::shared_ptr<const UpdateRule>& rule, int steps) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Variable w = strategy.make_variable(torch::ones({1}, torch::kDouble), {.name = "w"});
  const Optimizer optimizer =
      strategy.make_optimizer(std::vector<Variable>{w}, UpdateRuleOptions{.rule = rule, .learning_rate = 0.1});
  for (int k = 0; k < steps; ++k) step(strategy, w, optimizer, torch::full({1}, gradient_at(k), torch::kDouble));
  return w.read().item<double>();
}

constexpr double kClose = 1e-12;  // the same formula in another order of operations

TEST(LibraryRules, LionIsThatOfItsPaper) {
  Numbers x;
  for (int k = 0; k < 5; ++k) {
    const double g = gradient_at(k);
    const double c = 0.9 * x.m + 0.1 * g;
    x.w -= 0.1 * ((c > 0 ? 1 : -1) + 0.5 * x.w);
    x.m = 0.99 * x.m + 0.01 * g;
  }
  EXPECT_NEAR(trained_by(rules::lion({.weight_decay = 0.5}), 5), x.w, kClose);
}

TEST(LibraryRules, LambIsThatOfItsPaper) {
  Numbers x;
  for (int k = 0; k < 5; ++k) {
    const double g = gradient_at(k);
    x.m = 0.9 * x.m + 0.1 * g;
    x.v = 0.999 * x.v + 0.001 * g * g;
    const double r =
        x.m / (1 - std::pow(0.9, k + 1)) / (std::sqrt(x.v / (1 - std::pow(0.999, k + 1))) + 1e-6) + 0.25 * x.w;
    x.w -= 0.1 * std::abs(x.w) / std::abs(r) * r;
  }
  EXPECT_NEAR(trained_by(rules::lamb({.weight_decay = 0.25}), 5), x.w, kClose);
}

TEST(LibraryRules, NadamIsThatOfPythonsTorch) {
  // torch.optim.NAdam([w], lr=0.1, weight_decay=0.25), float64, gradients sin(1), sin(2), ..., w from 1.
  EXPECT_NEAR(trained_by(rules::nadam({.weight_decay = 0.25}), 5), 0.8585270219600303, kClose);
}

TEST(LibraryRules, RefuseOptionsThatCannotBe) {
  expect_error<UsageError>([] { rules::lion({.beta1 = 1}); }, "LS-OPTION", {"lion", ".beta1", "1"});
  expect_error<UsageError>([] { rules::lamb({.epsilon = -1}); }, "LS-OPTION", {"lamb", ".epsilon", "-1"});
  expect_error<UsageError>([] { rules::nadam({.momentum_decay = NAN}); }, "LS-OPTION", {"nadam", ".momentum_decay"});
}

}  // namespace
}  // namespace lockstep
