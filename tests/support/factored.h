// For tests of gradients that are kept as factors.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/factors.h"

namespace lockstep::testing {

/// Whether this LibTorch and this processor can keep gradients as factors at all.
inline bool can_factor() { return internal::kTellsRunningNode && internal::Factors::available(); }

/// LOCKSTEP_FACTORED_GRADIENTS is `value`, or unset where null, for strategies that are made while the scope lives. Not
/// while other threads read the environment.
class FactoredGradientsAre {
 public:
  explicit FactoredGradientsAre(const char* value) {
    if (const char* const before = std::getenv(kName)) before_ = before;
    set(value);
  }
  ~FactoredGradientsAre() { set(before_ ? before_->c_str() : nullptr); }
  FactoredGradientsAre(const FactoredGradientsAre&) = delete;
  FactoredGradientsAre& operator=(const FactoredGradientsAre&) = delete;

 private:
  static constexpr const char* kName = "LOCKSTEP_FACTORED_GRADIENTS";
  static void set(const char* value) {
    if (value) {
      setenv(kName, value, 1);
    } else {
      unsetenv(kName);
    }
  }
  std::optional<std::string> before_;
};

}  // namespace lockstep::testing
