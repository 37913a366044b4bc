// Switches in the environment that are a choice of a few words, such as LOCKSTEP_BUCKETS=off: docs/switches.md.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

namespace lockstep::internal::inline core {

/// A word that a switch may be set to, and what it stands for.
template <class T>
struct SwitchWord {
  std::string_view word;
  T value;
};
template <class T>
using SwitchWords = std::initializer_list<SwitchWord<std::type_identity_t<T>>>;

/// The text of a variable of the environment; empty where it is unset. Call while no thread calls setenv.
std::string_view switch_text(const char* variable);

/// What a text stands for; nothing where it is none of the words.
template <class T>
std::optional<T> word_in(std::string_view text, std::initializer_list<SwitchWord<T>> words) {
  for (const SwitchWord<T>& one : words) {
    if (text == one.word) return one.value;
  }
  return std::nullopt;
}

/// Throws the UsageError (LS-ENVIRONMENT) of a switch that is set to none of its words.
[[noreturn]] void refuse_switch(const char* variable, std::string_view text, const std::vector<std::string_view>& words,
                                std::string_view if_unset);

/// What the text of a switch stands for: `otherwise` where it is empty, which means unset. A UsageError
/// (LS-ENVIRONMENT) where it is none of the words. `if_unset` may complete its "or leave it unset", as " for info".
template <class T>
T choice_in(const char* variable, std::string_view text, SwitchWords<T> words, T otherwise,
            std::string_view if_unset = {}) {
  if (text.empty()) return otherwise;
  if (const auto found = word_in(text, words)) return *found;
  std::vector<std::string_view> all;
  for (const auto& one : words) all.push_back(one.word);
  refuse_switch(variable, text, all, if_unset);
}

/// The same of what the environment says now.
template <class T>
T choice_of(const char* variable, SwitchWords<T> words, T otherwise, std::string_view if_unset = {}) {
  return choice_in<T>(variable, switch_text(variable), words, otherwise, if_unset);
}

}  // namespace lockstep::internal::core
