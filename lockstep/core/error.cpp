#include "lockstep/core/error.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <set>

namespace lockstep {

namespace {

/// The most lines that what() shows; failures() has all failures.
constexpr std::size_t kLines = 8;

/// The message of a failure, with "replica ?" where it names its own replica, such as "replica 3". Replicas that failed
/// alike have this text in common.
std::string common_text_of(const ReplicaError::Failure& failure) {
  const std::string own = fmt::format("replica {}", failure.replica.value());
  std::string text = failure.message;
  for (std::size_t at = text.find(own); at != std::string::npos; at = text.find(own, at + 1)) {
    const std::size_t end = at + own.size();
    if (end == text.size() || text[end] < '0' || text[end] > '9') text.replace(at, own.size(), "replica ?");
  }
  return text;
}

/// Replicas that failed alike, for example by the error of one meeting. They share one line of the message.
struct Alike {
  const ReplicaError::Failure* first;
  std::string text;
  std::vector<int64_t> replicas;
};

/// For each failure the text that replicas which failed alike have in common. It is the common text where several
/// replicas say the same of themselves, otherwise the message as it is: replica 2 may be the one of which all speak.
std::vector<std::string> texts_of(const std::vector<ReplicaError::Failure>& failures) {
  std::vector<std::string> texts;
  std::map<std::string, std::set<std::string>> messages_by_common_text;
  for (const ReplicaError::Failure& failure : failures) {
    texts.push_back(common_text_of(failure));
    messages_by_common_text[texts.back()].insert(failure.message);
  }
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (messages_by_common_text[texts[i]].size() == 1) texts[i] = failures[i].message;
  }
  return texts;
}

std::vector<Alike> groups_of(const std::vector<ReplicaError::Failure>& failures) {
  const std::vector<std::string> texts = texts_of(failures);
  std::vector<Alike> groups;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    const ReplicaError::Failure& failure = failures[i];
    const std::string& text = texts[i];
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Alike& other) { return other.text == text; });
    if (group == groups.end()) group = groups.insert(groups.end(), {&failure, text, {}});
    group->replicas.push_back(failure.replica.value());
  }
  return groups;
}

/// The remedy of the exception; nothing where the exception is not the library's.
std::optional<std::string> remedy_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error.remedy();
  } catch (...) {
    return std::nullopt;
  }
}

constexpr const char* kForeign = "handle the exception of the step, which std::rethrow_if_nested throws";

std::string remedy_of(const std::vector<ReplicaError::Failure>& failures) {
  return remedy_of(failures.front().exception).value_or(kForeign);
}

/// The whole message. A library error's own message ends with its remedy; after another exception the last line says
/// how to get it.
std::string text_of(int64_t step, bool evaluation, const std::vector<ReplicaError::Failure>& failures) {
  const std::string where =
      evaluation ? fmt::format("evaluation after {} step{}", step, step == 1 ? "" : "s") : fmt::format("step {}", step);
  const std::vector<Alike> groups = groups_of(failures);
  std::string text;
  for (std::size_t i = 0; i < groups.size() && i < kLines; ++i) {
    const Alike& group = groups[i];
    text += fmt::format("{}{}, replica{} {}: {}", i == 0 ? "" : "\n", where, group.replicas.size() > 1 ? "s" : "",
                        fmt::join(group.replicas, ", "), group.first->message);
  }
  if (groups.size() > kLines) text += fmt::format("\nand {} more messages: see failures()", groups.size() - kLines);
  if (!remedy_of(failures.front().exception)) text += fmt::format("\n{}", kForeign);
  return text;
}

}  // namespace

ReplicaError::ReplicaError(int64_t step, std::vector<Failure> failures, bool evaluation)
    : Error(WholeText{text_of(step, evaluation, failures)}, "LS-REPLICA", remedy_of(failures)),
      step_(step),
      failures_(std::move(failures)) {}

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
  } catch (const std::bad_alloc& error) {
    return std::string("no memory: ") + error.what();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace lockstep
