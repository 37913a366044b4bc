#include "lockstep/core/process/forks.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline core {

namespace {

std::atomic<uint64_t> forks{0};  // through which this process came to be, from the first mark on

uint64_t forks_until_now() {
  [[maybe_unused]] static const int counted =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

ProcessMark::ProcessMark() : process_(getpid()), forks_(forks_until_now()) {}

bool ProcessMark::is_in_child() const { return forks.load(std::memory_order_relaxed) != forks_; }

void ProcessMark::throw_forked(const char* who, int64_t first, int64_t last) const {
  const std::string whose =
      first == last ? fmt::format("{} {}", who, first) : fmt::format("{}s {} to {}", who, first, last);
  throw UsageError("LS-FORKED",
                   fmt::format("a strategy was used in process {}, a child that was forked from process {} after the "
                               "strategy was made: the threads of {} exist in process {} only",
                               getpid(), process_, whose, process_),
                   "make a strategy in the child, or let the child exec a program");
}

}  // namespace lockstep::internal::core
