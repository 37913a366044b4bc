// Puts what `.tuning` gives into the options of the same names. A strategy does this first, so that nothing else knows
// that there are two ways to give an option.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/strategy/tuning.h"

namespace lockstep::internal::inline strategy {

/// The value as a program writes it: "UpdateForm::kSums".
std::string text_of(int64_t number);
std::string text_of(Copies copies);
std::string text_of(FactoredGradients asked);
std::string text_of(UpdateForm form);
std::string text_of(Slots slots);

[[noreturn]] void throw_given_twice(const std::string& strategy, const char* name, const std::string& beside,
                                    const std::string& in_tuning);
[[noreturn]] void throw_no_such_option(const std::string& strategy, const char* name, const std::string& in_tuning);

/// Puts what .tuning gives into the option of that name.
template <class T>
void take(const std::string& strategy, const char* name, const std::optional<T>& given, const T& by_default,
          T& option) {
  if (!given) return;
  if (option != by_default && option != *given) throw_given_twice(strategy, name, text_of(option), text_of(*given));
  option = *given;
}

/// For an option that the strategy does not have.
template <class T>
void require_default(const std::string& strategy, const char* name, const std::optional<T>& given, T by_default) {
  if (given && *given != by_default) throw_no_such_option(strategy, name, text_of(*given));
}

/// `options` with an empty .tuning. `strategy` is for the messages. Throws as the comment on Tuning says.
template <class Options>
Options resolve_tuning(const std::string& strategy, Options options) {
  const Tuning tuning = std::exchange(options.tuning, Tuning{});
  const Options defaults{};
  take(strategy, "verify_every", tuning.verify_every, defaults.verify_every, options.verify_every);
  take(strategy, "factored_gradients", tuning.factored_gradients, defaults.factored_gradients,
       options.factored_gradients);
  if constexpr (requires { options.copies; }) {
    take(strategy, "copies", tuning.copies, defaults.copies, options.copies);
  } else {
    require_default(strategy, "copies", tuning.copies, Copies::kPerMemory);
  }
  if constexpr (requires { options.update_form; }) {
    take(strategy, "update_form", tuning.update_form, defaults.update_form, options.update_form);
    take(strategy, "slots", tuning.slots, defaults.slots, options.slots);
  } else {
    require_default(strategy, "update_form", tuning.update_form, UpdateForm::kAuto);
    require_default(strategy, "slots", tuning.slots, Slots::kWhole);
  }
  return options;
}

}  // namespace lockstep::internal::strategy
