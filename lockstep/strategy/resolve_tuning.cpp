#include "lockstep/strategy/resolve_tuning.h"

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline strategy {

namespace {

/// A cast can make a value that is none of an enumeration's: that is shown as its number.
template <class T>
std::string enumerator(const char* type, std::initializer_list<const char*> names, T value) {
  const auto number = static_cast<int64_t>(value);
  if (number < 0 || number >= static_cast<int64_t>(names.size())) return fmt::format("{}({})", type, number);
  return fmt::format("{}::{}", type, names.begin()[number]);
}

}  // namespace

std::string text_of(int64_t number) { return std::to_string(number); }
std::string text_of(Copies copies) { return enumerator("Copies", {"kPerMemory", "kPerReplica"}, copies); }
std::string text_of(FactoredGradients asked) { return enumerator("FactoredGradients", {"kAuto", "kOff"}, asked); }
std::string text_of(UpdateForm form) {
  return enumerator("UpdateForm", {"kAuto", "kHostMemory", "kSums", "kFactors"}, form);
}
std::string text_of(Slots slots) { return enumerator("Slots", {"kWhole", "kSliced"}, slots); }

void throw_given_twice(const std::string& strategy, const char* name, const std::string& beside,
                       const std::string& in_tuning) {
  throw UsageError("LS-OPTION",
                   fmt::format("{} was given .{} = {} and .tuning.{} = {}", strategy, name, beside, name, in_tuning),
                   fmt::format("give it once, as .tuning = {{.{} = ...}}", name));
}

void throw_no_such_option(const std::string& strategy, const char* name, const std::string& in_tuning) {
  throw UsageError("LS-OPTION",
                   fmt::format("{} was given .tuning.{} = {}, and has no such option", strategy, name, in_tuning),
                   fmt::format("leave .tuning.{} out", name));
}

}  // namespace lockstep::internal::strategy
