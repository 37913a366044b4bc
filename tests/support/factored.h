// For tests of gradients that are kept as factors, and of products of few samples.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include "lockstep/core/torch_compat.h"
#include "lockstep/linear/product_order.h"
#include "lockstep/linear/step_products.h"
#include "lockstep/reduce/factors.h"

namespace lockstep::testing {

/// Whether this LibTorch and this processor can keep gradients as factors at all: also whether the matrix library adds
/// in an order that is known.
inline bool can_factor() {
  return internal::kTellsRunningNode && internal::Factors::available() &&
         internal::zero_sums_of_libtorch(8, 256, 300).has_value();
}

/// The environment has `name` as `value`, or not at all where that is null, while the scope lives. Not while other
/// threads read the environment.
class EnvironmentScope {
 public:
  EnvironmentScope(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~EnvironmentScope() { set(before_ ? before_->c_str() : nullptr); }
  EnvironmentScope(const EnvironmentScope&) = delete;
  EnvironmentScope& operator=(const EnvironmentScope&) = delete;

 private:
  void set(const char* value) const {
    if (value) {
      setenv(name_, value, 1);
    } else {
      unsetenv(name_);
    }
  }
  const char* const name_;
  std::optional<std::string> before_;
};

/// LOCKSTEP_FACTORED_GRADIENTS is `value`, or unset where null, for strategies that are made while the scope lives.
class FactoredGradientsAre : EnvironmentScope {
 public:
  explicit FactoredGradientsAre(const char* value) : EnvironmentScope("LOCKSTEP_FACTORED_GRADIENTS", value) {}
};

/// LOCKSTEP_FEW_SAMPLES_PRODUCTS is `value`, or unset where null, for all strategies while the scope lives. Not while a
/// replica computes.
class FewSamplesProductsAre {
 public:
  explicit FewSamplesProductsAre(const char* value) {
    scope_.emplace("LOCKSTEP_FEW_SAMPLES_PRODUCTS", value);
    internal::use_step_products();
  }
  ~FewSamplesProductsAre() {
    scope_.reset();
    internal::use_step_products();
  }
  FewSamplesProductsAre(const FewSamplesProductsAre&) = delete;
  FewSamplesProductsAre& operator=(const FewSamplesProductsAre&) = delete;

 private:
  std::optional<EnvironmentScope> scope_;
};

}  // namespace lockstep::testing
