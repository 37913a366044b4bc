// The look-up of a host's name, in bounded time. The system's own can take minutes and cannot be stopped, so a thread
// of its own does it, which nobody waits for longer than he likes.
#include "lockstep/comm/join/look_up.h"

#include <fmt/format.h>
#include <netdb.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/cluster/named_text.h"
#include "lockstep/comm/join/interfaces.h"
#include "lockstep/comm/join/socket_address.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

/// What the thread and its caller share; the last of them frees it.
struct LookUp::Answer {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;  // guarded by mutex, as is that below
  HostNumbers found;

  void set(HostNumbers numbers) {
    const std::lock_guard<std::mutex> lock(mutex);
    found = std::move(numbers);
    done = true;
    changed.notify_all();
  }
};

HostNumbers ask_system(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &first);
  if (error != 0) return {.problem = gai_strerror(error)};
  HostNumbers found;
  for (const addrinfo* one = first; one != nullptr; one = one->ai_next) {
    std::string number = number_of(*one->ai_addr);
    const bool is_new = std::find(found.numbers.begin(), found.numbers.end(), number) == found.numbers.end();
    if (!number.empty() && is_new) found.numbers.push_back(std::move(number));
  }
  freeaddrinfo(first);
  if (found.numbers.empty()) found.problem = "it has no IPv4 and no IPv6 address";
  return found;
}

LookUp::LookUp(const std::string& host, const Resolver& resolver) : answer_(std::make_shared<Answer>()) {
  try {
    std::thread([answer = answer_, host, resolver] {
      // Signals are for the program's own threads, and this one may outlive the call by minutes.
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, nullptr);
      try {
        answer->set(resolver(host));
      } catch (const std::exception&) {
        answer->set({.problem = "no memory"});
      }
    }).detach();
  } catch (const std::system_error& error) {
    answer_->set({.problem = std::string("no thread can be started: ") + error.what()});
  }
}

bool LookUp::is_done() const {
  const std::lock_guard<std::mutex> lock(answer_->mutex);
  return answer_->done;
}

bool LookUp::wait(std::chrono::milliseconds longest) const {
  std::unique_lock<std::mutex> lock(answer_->mutex);
  return answer_->changed.wait_for(lock, longest, [&] { return answer_->done; });
}

HostNumbers LookUp::found() const {
  const std::lock_guard<std::mutex> lock(answer_->mutex);
  return answer_->found;
}

std::vector<std::string> look_up(const std::string& host, std::chrono::milliseconds longest) {
  if (const auto number = socket_address_of(host, 0)) return {number_of(*number->generic())};
  const LookUp asked(host);
  const HostNumbers found = asked.wait(longest)
                                ? asked.found()
                                : HostNumbers{.problem = fmt::format("no answer after {} ms", longest.count())};
  if (!found.numbers.empty()) return found.numbers;
  throw ClusterError("LS-CLUSTER-LOOK-UP",
                     fmt::format("the host {} cannot be looked up: {}", in_quotes(host), found.problem),
                     "correct the host's name, the name service or /etc/hosts, or give the host's number");
}

}  // namespace lockstep::internal::comm
