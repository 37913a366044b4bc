// The one way in which tests look at errors: by type, code and values, not by sentences.
//
//   expect_error<UsageError>([&] { variable.assign(wrong); }, "LS-NOT-ALIKE", {"variable 'w'", "replica 1"});
//   expect_step_error<UsageError>([&] { strategy.run(step); }, "LS-NESTED-CALL");   // a ReplicaError nested on it
//   const ReplicaError error = error_from<ReplicaError>([&] { strategy.run(step); });
//
// A value is a name or a number with what stands before it. It stands in the fact as whole words: "replica 1" is not
// found in "replica 12". Each function notes a failure at the line that calls it, and goes on.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <exception>
#include <initializer_list>
#include <optional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::testing {

using Where = std::source_location;

/// Notes a failure at `where`.
inline void fail_at(const Where& where, const std::string& text) {
  ADD_FAILURE_AT(where.file_name(), static_cast<int>(where.line())) << text;
}

/// Whether `value` stands in `text` as whole words.
inline bool has_value(std::string_view text, std::string_view value) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (std::size_t at = text.find(value); at != std::string_view::npos; at = text.find(value, at + 1)) {
    const std::size_t end = at + value.size();
    const bool begins = at == 0 || !is_word(text[at - 1]) || !is_word(value.front());
    const bool ends = end == text.size() || !is_word(text[end]) || !is_word(value.back());
    if (begins && ends) return true;
  }
  return false;
}

/// Runs `fn`, which must throw an E, and gives a copy of it; nothing where it does not, which is noted.
template <class E, class Fn>
std::optional<E> caught_from(Fn&& fn, const Where& where = Where::current()) {
  try {
    fn();
  } catch (const E& error) {
    return error;
  } catch (...) {
    fail_at(where, "another exception was thrown: " + message_of(std::current_exception()));
    return std::nullopt;
  }
  fail_at(where, "nothing was thrown");
  return std::nullopt;
}

/// The same for a test that cannot go on without the exception: where there is none, the test ends.
template <class E, class Fn>
E error_from(Fn&& fn, const Where& where = Where::current()) {
  std::optional<E> error = caught_from<E>(fn, where);
  if (!error) throw std::logic_error("the test cannot go on without the error that it expects");
  return *error;
}

/// Notes what of the code and the values `error` has not. `text` is where the values must stand.
inline void expect_code_and_values(const Error& error, std::string_view text, std::string_view code,
                                   std::initializer_list<std::string_view> values, const Where& where) {
  if (error.code() != code) {
    fail_at(where, "the code is '" + error.code() + "', expected '" + std::string(code) + "', of: " + error.what());
  }
  for (const std::string_view value : values) {
    if (!has_value(text, value)) fail_at(where, "no '" + std::string(value) + "' in: " + std::string(text));
  }
  if (error.remedy().empty()) fail_at(where, std::string("no remedy in: ") + error.what());
}

/// `fn` throws an E itself, with this code and with each of the values in its text.
template <class E, class Fn>
void expect_error(Fn&& fn, std::string_view code, std::initializer_list<std::string_view> values = {},
                  const Where& where = Where::current()) {
  if (const std::optional<E> error = caught_from<E>(fn, where)) {
    expect_code_and_values(*error, error->what(), code, values, where);
  }
}

/// `fn` throws a ReplicaError that is nested on an E with this code. The values stand in the text of the ReplicaError,
/// which quotes that of every replica.
template <class E, class Fn>
void expect_step_error(Fn&& fn, std::string_view code, std::initializer_list<std::string_view> values = {},
                       const Where& where = Where::current()) {
  const std::optional<ReplicaError> outer = caught_from<ReplicaError>(fn, where);
  if (!outer) return;
  const std::optional<E> cause = caught_from<E>([&] { std::rethrow_if_nested(*outer); }, where);
  if (cause) expect_code_and_values(*cause, outer->what(), code, values, where);
}

/// Runs `fn`, which must throw an E, and gives its text.
template <class E, class Fn>
std::string message_from(Fn&& fn, const Where& where = Where::current()) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  } catch (...) {
    fail_at(where, "another exception was thrown: " + message_of(std::current_exception()));
    return "";
  }
  fail_at(where, "nothing was thrown");
  return "";
}

/// Runs `fn`, which must throw a ReplicaError nested on an E, and gives E's text.
template <class E, class Fn>
std::string nested_message_from(Fn&& fn, const Where& where = Where::current()) {
  const std::optional<ReplicaError> outer = caught_from<ReplicaError>(fn, where);
  return outer ? message_from<E>([&] { std::rethrow_if_nested(*outer); }, where) : "";
}

}  // namespace lockstep::testing
