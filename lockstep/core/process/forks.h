// Notices that this process is a forked child: threads do not come along into it.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline core {

/// Remembers the process in which it was made. Every member may be called on any thread.
class ProcessMark {
 public:
  ProcessMark();
  /// Whether this process was forked after the mark was made. Then only the forking thread came along; a thread that
  /// the mark's owner had, or waits for, does not exist here. It costs one load.
  bool is_in_child() const;
  /// Throws the UsageError LS-FORKED, which says that the threads of `who` ("replica") `first` to `last` exist in the
  /// process of the mark only.
  [[noreturn]] void throw_forked(const char* who, int64_t first, int64_t last) const;

 private:
  const int64_t process_;
  const uint64_t forks_;
};

}  // namespace lockstep::internal::core
