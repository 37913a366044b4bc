// The look-up of a host's name, in bounded time. The system's own can take minutes and cannot be stopped, so a thread
// of its own does it, which nobody waits for longer than he likes.
#include <fmt/format.h>
#include <netdb.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "lockstep/cluster/named_text.h"
#include "lockstep/comm/interfaces.h"
#include "lockstep/comm/socket_address.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace {

/// What the thread and its caller share; the last of them frees it.
struct Answer {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;  // guarded by mutex, as are those below
  int error = 0;      // getaddrinfo's
  std::vector<std::string> numbers;
};

void ask_system(const std::string& host, Answer& answer) try {
  // Signals are for the program's own threads, and this one may outlive the call by minutes.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &first);
  std::vector<std::string> numbers;
  for (const addrinfo* one = error == 0 ? first : nullptr; one != nullptr; one = one->ai_next) {
    std::string number = number_of(*one->ai_addr);
    const bool is_new = std::find(numbers.begin(), numbers.end(), number) == numbers.end();
    if (!number.empty() && is_new) numbers.push_back(std::move(number));
  }
  if (error == 0) freeaddrinfo(first);
  const std::lock_guard<std::mutex> lock(answer.mutex);
  answer.error = error;
  answer.numbers = std::move(numbers);
  answer.done = true;
  answer.changed.notify_one();
} catch (const std::exception&) {
  const std::lock_guard<std::mutex> lock(answer.mutex);
  answer.error = EAI_MEMORY;
  answer.done = true;
  answer.changed.notify_one();
}

[[noreturn]] void refuse(const std::string& host, const std::string& why) {
  throw ClusterError("LS-CLUSTER-LOOK-UP", fmt::format("the host {} cannot be looked up: {}", in_quotes(host), why),
                     "correct the host's name, the name service or /etc/hosts, or give the host's number");
}

}  // namespace

std::vector<std::string> look_up(const std::string& host, std::chrono::milliseconds longest) {
  if (const auto number = socket_address_of(host, 0)) return {number_of(*number->generic())};
  const auto answer = std::make_shared<Answer>();
  try {
    std::thread([answer, host] { ask_system(host, *answer); }).detach();
  } catch (const std::system_error& error) {
    refuse(host, std::string("no thread can be started: ") + error.what());
  }
  std::unique_lock<std::mutex> lock(answer->mutex);
  if (!answer->changed.wait_for(lock, longest, [&] { return answer->done; })) {
    refuse(host, fmt::format("no answer after {} ms", longest.count()));
  }
  if (answer->error != 0) refuse(host, gai_strerror(answer->error));
  if (answer->numbers.empty()) refuse(host, "it has no IPv4 and no IPv6 address");
  return std::move(answer->numbers);
}

}  // namespace lockstep::internal
