// A look-up of a host's name that goes on by itself, while its caller does something else.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::internal::inline comm {

/// What a look-up has found.
struct HostNumbers {
  std::vector<std::string> numbers = {};  // in the order in which the system gives them, without duplicates
  std::string problem = {};               // why there are none; empty where there are
};

/// Looks a name up, and may take minutes. Any thread may call it.
using Resolver = std::function<HostNumbers(const std::string& host)>;
HostNumbers ask_system(const std::string& host);

/// A thread of its own asks the resolver. It may go on after this object is gone, and shares nothing with others then.
class LookUp {
 public:
  explicit LookUp(const std::string& host, const Resolver& resolver = ask_system);

  /// Does not wait.
  bool is_done() const;
  /// Waits until it is done, at most so long. False where it is not.
  bool wait(std::chrono::milliseconds longest) const;
  /// Only once it is done.
  HostNumbers found() const;

 private:
  struct Answer;
  std::shared_ptr<Answer> answer_;
};

}  // namespace lockstep::internal::comm
