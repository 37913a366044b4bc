// The side of worker_processes.h that runs in a worker.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

#include "tests/support/worker_link.h"
#include "tests/support/worker_processes.h"

namespace lockstep::testing {

namespace {

std::map<std::string, void (*)()>& bodies() {
  static std::map<std::string, void (*)()> all;
  return all;
}

std::string environment_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

WorkerBody::WorkerBody(const char* name, void (*body)()) {
  if (!bodies().emplace(name, body).second) {
    std::cerr << "there are two bodies of workers with the name " << name << std::endl;
    std::abort();
  }
}

int64_t my_worker_index() { return std::stoll(environment_of(kIndexVariable)); }

void report(const std::string& text) {
  const int64_t when = std::chrono::steady_clock::now().time_since_epoch().count();
  std::string message(sizeof(when), '\0');
  std::memcpy(message.data(), &when, sizeof(when));
  message += text;
  if (send(kLink, message.data(), message.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(message.size())) {
    throw std::runtime_error("the test does not take reports: " + std::string(std::strerror(errno)));
  }
}

std::string next_word() {
  std::string got(4096, '\0');
  ssize_t size = -1;
  do {
    size = recv(kLink, got.data(), got.size(), 0);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) _exit(kTestHasEnded);
  got.resize(static_cast<std::size_t>(size));
  return got;
}

void wait_for(const std::string& word) {
  const std::string got = next_word();
  if (got != word) throw std::runtime_error("the test said '" + got + "' where the worker waits for '" + word + "'");
}

void run_body_of_worker() {
  const std::string name = environment_of(kBodyVariable);
  if (name.empty()) return;
  // Where the test is killed, the kernel ends its workers. It may have been killed before this line.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::to_string(getppid()) != environment_of(kParentVariable)) _exit(kTestHasEnded);
  unsetenv(kBodyVariable);  // programs that the worker starts are not workers
  int code = 0;
  const auto body = bodies().find(name);
  try {
    if (body == bodies().end()) throw std::runtime_error("there is no body of workers with the name " + name);
    body->second();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    code = kBodyHasThrown;
  }
  std::exit(code);
}

}  // namespace lockstep::testing
