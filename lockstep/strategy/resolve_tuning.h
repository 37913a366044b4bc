// Puts what `.tuning` gives into the options of the same names. A strategy does this first, so that nothing else knows
// that there are two ways to give an option.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/strategy/tuning.h"

namespace lockstep::internal::inline strategy {

/// One option that Tuning has.
template <class T>
struct Tuned {
  const char* name;
  const std::optional<T>& given;  // in .tuning
  T by_default;
};

/// The value as a program writes it: "UpdateForm::kSums".
std::string text_of(int64_t number);
std::string text_of(Copies copies);
std::string text_of(FactoredGradients asked);
std::string text_of(UpdateForm form);
std::string text_of(Slots slots);

[[noreturn]] void throw_given_twice(const std::string& strategy, const char* name, const std::string& beside,
                                    const std::string& in_tuning);
[[noreturn]] void throw_no_such_option(const std::string& strategy, const char* name, const std::string& in_tuning);

template <class T>
void take(const std::string& strategy, const Tuned<T>& one, T& option) {
  if (!one.given) return;
  if (option != one.by_default && option != *one.given) {
    throw_given_twice(strategy, one.name, text_of(option), text_of(*one.given));
  }
  option = *one.given;
}

template <class T>
void require_unused(const std::string& strategy, const Tuned<T>& one) {
  if (one.given && *one.given != one.by_default) throw_no_such_option(strategy, one.name, text_of(*one.given));
}

/// `options` with an empty .tuning. `strategy` is for the messages. Throws as the comment on Tuning says.
template <class Options>
Options resolve_tuning(const std::string& strategy, Options options) {
  const Tuning tuning = std::exchange(options.tuning, Tuning{});
  const Tuned<Copies> copies{"copies", tuning.copies, Copies::kPerMemory};
  const Tuned<int64_t> verify_every{"verify_every", tuning.verify_every, 100};
  const Tuned<FactoredGradients> factored{"factored_gradients", tuning.factored_gradients, FactoredGradients::kAuto};
  const Tuned<UpdateForm> update_form{"update_form", tuning.update_form, UpdateForm::kAuto};
  const Tuned<Slots> slots{"slots", tuning.slots, Slots::kWhole};
  take(strategy, verify_every, options.verify_every);
  take(strategy, factored, options.factored_gradients);
  if constexpr (requires { options.copies; }) {
    take(strategy, copies, options.copies);
  } else {
    require_unused(strategy, copies);
  }
  if constexpr (requires { options.update_form; }) {
    take(strategy, update_form, options.update_form);
    take(strategy, slots, options.slots);
  } else {
    require_unused(strategy, update_form);
    require_unused(strategy, slots);
  }
  return options;
}

}  // namespace lockstep::internal::strategy
