// What the fuzz targets share. Each input must end in a value or in one of the library's errors, and a value must keep
// what its type promises; anything else stops the fuzzer.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::fuzz {

/// Stops the fuzzer where a promise is broken.
inline void check(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", promise);
  std::abort();
}

/// A message is of two lines of printable ASCII, and not longer than a screen.
inline void check_message(const Error& error) {
  const std::string text = error.what();
  check(text.size() < 4000, "a message is short");
  int lines = 1;
  for (const char c : text) {
    check((c >= 0x20 && c <= 0x7e) || c == '\n', "a message is printable");
    lines += c == '\n' ? 1 : 0;
  }
  check(lines == 2, "a message has two lines");
}

/// Runs `fn`, which may throw what the library's resolver may throw and nothing else.
template <class Fn>
void expect_value_or_error(Fn&& fn) {
  try {
    fn();
  } catch (const ClusterError& error) {
    check_message(error);
  } catch (const UsageError& error) {
    check_message(error);
  }
}

/// Runs `fn`, which may throw what reading a file may throw and nothing else; false where it did.
template <class Fn>
bool is_value_or_data_error(Fn&& fn) {
  try {
    fn();
    return true;
  } catch (const DataError& error) {
    check_message(error);
    return false;
  }
}

}  // namespace lockstep::fuzz
