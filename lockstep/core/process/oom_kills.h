// How often the kernel's out-of-memory killer was at work here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::internal::inline core {

/// How many processes of this process's memory control group the out-of-memory killer has killed so far; nothing where
/// the system does not say. /proc and /sys are looked for below `root`, which is another folder in tests.
std::optional<int64_t> oom_kills(const std::string& root = "");
/// The same of this machine: all processes that this one's kernel has.
std::optional<int64_t> oom_kills_of_machine(const std::string& root = "");

/// Whether it was at work since this object was made.
class OomWatch {
 public:
  explicit OomWatch(std::string root = "");

  /// What to add to "the process is gone": "; the kernel's out-of-memory killer has killed 1 process of this control
  /// group since the run began", or the same of this machine, where the process may have had another group. Empty where
  /// the killer was not at work, as far as the system says. The kernel counts before the process ends.
  std::string text() const;

 private:
  const std::string root_;
  const std::optional<int64_t> of_group_;
  const std::optional<int64_t> of_machine_;
};

}  // namespace lockstep::internal::core
