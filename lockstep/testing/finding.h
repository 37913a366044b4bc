// How the checks of the conformance suites compare and report. Nothing here needs LibTorch.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/testing/conformance/conformance_check.h"

namespace lockstep::internal::inline testing {

/// What a check found that contradicts its claim.
class Finding : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void expect(bool holds, const std::string& found) {
  if (!holds) throw Finding(found);
}

/// For any type that fmt can print.
template <class T>
void expect_equal(std::string_view what, const T& found, const T& expected) {
  if (!(found == expected)) throw Finding(fmt::format("{} is {}, expected {}", what, found, expected));
}

/// What `call` throws; null where it throws nothing.
std::exception_ptr thrown_by(FunctionRef<void()> call);

/// Requires that `found`, which `what` threw (null: nothing), is an E whose text has all of `parts` in it.
template <class E>
void expect_error(std::string_view what, std::string_view expected, const std::exception_ptr& found,
                  std::initializer_list<std::string_view> parts) {
  if (!found) throw Finding(fmt::format("{} threw nothing, expected {}", what, expected));
  try {
    std::rethrow_exception(found);
  } catch (const E& error) {
    const std::string_view text = error.what();
    for (const std::string_view part : parts) {
      if (text.find(part) == std::string_view::npos) {
        throw Finding(fmt::format("{} threw '{}', which does not name '{}'", what, text, part));
      }
    }
  } catch (...) {
    throw Finding(fmt::format("{} threw '{}', expected {}", what, message_of(std::current_exception()), expected));
  }
}

/// Throws what stopped a check, `found`, as a DivergenceError: about whom, what it was, and the one thing to do.
[[noreturn]] void throw_found(ErrorCode code, const std::string& who, const std::exception_ptr& found,
                              const char* look_at);
/// Runs all checks, and then throws one DivergenceError that lists those that failed, where there are any.
void run_all(ErrorCode code, const std::vector<lockstep::testing::ConformanceCheck>& checks);

}  // namespace lockstep::internal::testing
