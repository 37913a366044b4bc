#include "lockstep/core/error.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace lockstep {

namespace {

std::string fact_of(int64_t step, const std::vector<ReplicaError::Failure>& failures) {
  // Replicas that failed alike (an error of a common meeting) are one line.
  std::string text;
  for (std::size_t i = 0; i < failures.size();) {
    std::string who = fmt::format("{}", failures[i].replica.value());
    std::size_t next = i + 1;
    while (next < failures.size() && failures[next].message == failures[i].message) {
      who += fmt::format(", {}", failures[next].replica.value());
      ++next;
    }
    text += fmt::format("{}step {}, replica{} {}: {}", i == 0 ? "" : "\n", step, next - i > 1 ? "s" : "", who,
                        failures[i].message);
    i = next;
  }
  return text;
}

std::string remedy_of(const std::vector<ReplicaError::Failure>& failures) {
  try {
    std::rethrow_exception(failures.front().exception);
  } catch (const Error&) {
    return "nothing of the failed step was applied beyond the optimizer steps that had completed in it";
  } catch (...) {
    return "the exception of the step itself is nested: std::rethrow_if_nested gives it";
  }
}

}  // namespace

ReplicaError::ReplicaError(int64_t step, std::vector<Failure> failures)
    : Error(fact_of(step, failures), remedy_of(failures)), step_(step), failures_(std::move(failures)) {}

std::vector<std::string> ReplicaError::messages() const {
  std::vector<std::string> result;
  for (const auto& failure : failures_) result.push_back(failure.message);
  return result;
}

std::vector<std::exception_ptr> ReplicaError::exceptions() const {
  std::vector<std::exception_ptr> result;
  for (const auto& failure : failures_) result.push_back(failure.exception);
  return result;
}

std::string message_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    return text.substr(0, text.find("\nException raised from"));
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace lockstep
