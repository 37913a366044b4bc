#include "lockstep/optim/rules/option_checks.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::internal::inline optim {

void require_option(bool valid, std::string_view who, std::string_view option, double value, const char* remedy) {
  if (!valid) throw UsageError("LS-OPTION", fmt::format("{} was given {} = {}", who, option, value), remedy);
}

void check_not_negative(std::string_view who, std::string_view option, double value) {
  require_option(value >= 0 && std::isfinite(value), who, option, value, "give a finite number that is not negative");
}

void check_fraction(std::string_view who, std::string_view option, double value) {
  require_option(value >= 0 && value < 1, who, option, value, "give a number from 0 to below 1");
}

void check_count(std::string_view who, std::string_view option, int64_t count, int64_t fewest) {
  require_option(count >= fewest, who, option, static_cast<double>(count),
                 fewest == 0 ? "give a number of steps, or 0" : "give a number of steps of at least 1");
}

void check(const StepOptions& options) {
  constexpr const char* kWho = "optimizer.step";
  if (options.clip_global_norm) {
    require_option(*options.clip_global_norm > 0, kWho, ".clip_global_norm", *options.clip_global_norm,
                   "give a positive norm, or leave it out");
  }
  if (!options.clip_value) return;
  require_option(*options.clip_value > 0, kWho, ".clip_value", *options.clip_value,
                 "give a positive number, or leave it out");
  if (options.clip_global_norm) {
    throw UsageError("LS-OPTION", ".clip_value and .clip_global_norm are both set", "choose one of them");
  }
}

}  // namespace lockstep::internal::optim
