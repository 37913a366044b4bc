// Findings: what the library noticed in a program and does not treat as an error. Each is logged once and counted.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/function_ref.h"

namespace lockstep {

/// Something that is probably a mistake.
struct Finding {
  std::string code;   // "LS-LOSS-NOT-SCALED": docs/errors.md has the cause and the cure
  std::string text;   // what the log said: the subject, the step, and the right call
  int64_t step = 0;   // where it was first noticed
  int64_t count = 0;  // in how many steps
};

namespace internal::inline core {

/// The findings of one strategy. Any thread.
class Findings {
 public:
  /// Counts a finding of `code` about `subject`. The first one of this code and subject is logged as a warning, with
  /// `text()`.
  void add(ErrorCode code, const std::string& subject, int64_t step, FunctionRef<std::string()> text);
  /// All findings, in the order in which they were first noticed.
  std::vector<Finding> all() const;

 private:
  struct Entry {
    std::string subject;
    Finding finding;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // guarded by mutex_
};

}  // namespace internal::core
}  // namespace lockstep
