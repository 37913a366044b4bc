#include "lockstep/comm/service_thread.h"

#include <fmt/format.h>
#include <pthread.h>

#include <csignal>
#include <system_error>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/process/thread_limits.h"

namespace lockstep::internal::inline comm {

std::thread start_service_thread(int64_t worker, const char* what, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits it
  try {
    std::thread thread(std::move(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw ClusterError("LS-CLUSTER-SOCKET",
                       fmt::format("worker {} could not start its {}, a thread: {}", worker, what, error.what()),
                       fmt::format("raise the limit: {}", thread_limits_text()));
  }
}

}  // namespace lockstep::internal::comm
