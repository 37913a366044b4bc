#include "lockstep/testing/finding.h"

namespace lockstep::internal::inline testing {

namespace {

/// The text with all lines but the first indented.
std::string indented(std::string text) {
  for (auto line = text.find('\n'); line != std::string::npos; line = text.find('\n', line + 1))
    text.insert(line + 1, "    ");
  return text;
}

}  // namespace

std::exception_ptr thrown_by(FunctionRef<void()> call) {
  try {
    call();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void throw_found(ErrorCode code, const std::string& who, const std::exception_ptr& found, const char* look_at) {
  try {
    std::rethrow_exception(found);
  } catch (const Finding& finding) {
    throw DivergenceError(code, fmt::format("{}: {}", who, finding.what()), look_at);
  } catch (...) {
    throw DivergenceError(code, fmt::format("{}: the check was stopped by '{}'", who, message_of(found)), look_at);
  }
}

void run_all(ErrorCode code, const std::vector<lockstep::testing::ConformanceCheck>& checks) {
  std::string failed;
  int count = 0;
  for (const lockstep::testing::ConformanceCheck& check : checks) {
    const auto found = thrown_by([&] { check.run(); });
    if (!found) continue;
    ++count;
    failed += fmt::format("\n  {}: {}", check.name, indented(message_of(found)));
  }
  if (count == 0) return;
  throw DivergenceError(code,
                        fmt::format("{} of {} checks of the conformance suite failed{}", count, checks.size(), failed),
                        "begin with the first: others may follow from it");
}

}  // namespace lockstep::internal::testing
