// The thread is sent SIGURG, which does nothing where nobody handles it: so one that comes too late does no harm.
#include "lockstep/core/process/thread_stack.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <semaphore.h>
#include <csignal>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>

namespace lockstep::internal::inline core {

namespace {

constexpr int kMostFrames = 64;

/// What the handler writes; one call of stack_of_thread() uses it at a time.
struct Answer {
  std::atomic<bool> is_wanted{false};
  std::array<void*, kMostFrames> frames{};
  int count = 0;
  sem_t has_come{};
};
Answer answer;

void answer_signal(int /*signal*/) {
  const int error = errno;
  if (answer.is_wanted.exchange(false)) {
    answer.count = backtrace(answer.frames.data(), kMostFrames);
    sem_post(&answer.has_come);
  }
  errno = error;
}

std::string line_of(void* frame) {
  Dl_info where{};
  if (dladdr(frame, &where) == 0 || where.dli_fname == nullptr) return fmt::format("  {}", frame);
  const auto offset = static_cast<const char*>(frame) - static_cast<const char*>(where.dli_fbase);
  if (where.dli_sname == nullptr) return fmt::format("  {}+{:#x}", where.dli_fname, offset);
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(where.dli_sname, nullptr, nullptr, &status),
                                                    std::free);
  return fmt::format("  {} ({}+{:#x})", status == 0 ? name.get() : where.dli_sname, where.dli_fname, offset);
}

}  // namespace

std::string stack_of_thread(pthread_t thread) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  backtrace(answer.frames.data(), 1);  // its first call loads a library, which a handler must not do
  sem_init(&answer.has_come, 0, 0);
  struct sigaction mine {};
  struct sigaction before {};
  mine.sa_handler = &answer_signal;
  mine.sa_flags = SA_RESTART;
  sigemptyset(&mine.sa_mask);
  if (sigaction(SIGURG, &mine, &before) != 0) return "  (no stack: signals cannot be handled)";
  answer.is_wanted = true;
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 1;
  bool has_come = pthread_kill(thread, SIGURG) == 0;
  while (has_come && sem_timedwait(&answer.has_come, &until) != 0) has_come = errno == EINTR;
  if (!has_come && !answer.is_wanted.exchange(false)) {  // it has begun to answer
    while (sem_wait(&answer.has_come) != 0) continue;
    has_come = true;
  }
  sigaction(SIGURG, &before, nullptr);
  if (!has_come) return "  (no stack: the thread does not answer)";
  constexpr int kOwnFrames = 2;  // the handler, and what the system has put before it
  std::string text;
  for (int i = kOwnFrames; i < answer.count; ++i) {
    text += (text.empty() ? "" : "\n") + line_of(answer.frames[static_cast<std::size_t>(i)]);
  }
  return text;
}

}  // namespace lockstep::internal::core
