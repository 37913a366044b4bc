// Which numbers the options of rules, schedules, averages and steps may be.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

struct StepOptions;

namespace internal::inline optim {

// Each throws a UsageError (LS-OPTION) that says who was given which value of which option, and what to give instead.

/// Where `valid` is false.
void require_option(bool valid, std::string_view who, std::string_view option, double value, const char* remedy);
/// Unless the value is finite and not negative.
void check_not_negative(std::string_view who, std::string_view option, double value);
/// Unless it is from 0 to below 1.
void check_fraction(std::string_view who, std::string_view option, double value);
/// Unless it is a number of steps, of at least `fewest`, which is 0 or 1.
void check_count(std::string_view who, std::string_view option, int64_t count, int64_t fewest = 1);

/// Unless both limits on gradients are positive, and at most one of them is set.
void check(const StepOptions& options);

}  // namespace internal::optim
}  // namespace lockstep
