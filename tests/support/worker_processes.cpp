#include "tests/support/worker_processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <iostream>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "tests/support/worker_link.h"

namespace lockstep::testing {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Throws where a system call has failed.
int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

/// An open file, closed at the end.
class File {
 public:
  explicit File(int number = -1) : number_(number) {}
  ~File() { close(); }
  File(File&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  File& operator=(File&& other) noexcept {
    close();
    number_ = std::exchange(other.number_, -1);
    return *this;
  }
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

struct Process {
  pid_t pid = -1;
  File link;
  File output_pipe;
  File ended;  // readable when the process has ended
  // What it has done. Guarded by the mutex of Processes:
  std::vector<Report> reports = {};
  std::string output = {};
  std::optional<Ending> ending = {};
};

/// The environment of the test with `added` in it, as exec takes it.
class Variables {
 public:
  explicit Variables(WorkerProcesses::Environment added) {
    for (char** one = environ; *one != nullptr; ++one) {
      const std::string text(*one);
      added.emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
    }
    for (const auto& [name, value] : added) texts_.push_back(name + "=" + value);
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  char* const* get() { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

/// Starts this program again as a worker, in a process group of its own.
Process start(const std::string& body, int64_t index, WorkerProcesses::Environment environment) {
  environment[kBodyVariable] = body;
  environment[kIndexVariable] = std::to_string(index);
  environment[kParentVariable] = std::to_string(getpid());
  Variables variables(std::move(environment));

  std::array<int, 2> link{};
  checked(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link.data()), "socketpair");
  File mine(link[0]);
  const File theirs(link[1]);
  std::array<int, 2> pipe_ends{};
  checked(pipe2(pipe_ends.data(), O_CLOEXEC), "pipe2");
  File read_end(pipe_ends[0]);
  const File write_end(pipe_ends[1]);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, write_end.number(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, write_end.number(), STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&files, theirs.number(), kLink);  // the last: it may replace one of the others
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::string program = "/proc/self/exe";
  const std::array<char*, 2> arguments{program.data(), nullptr};
  pid_t pid = -1;
  const int failed = posix_spawn(&pid, program.c_str(), &files, &attributes, arguments.data(), variables.get());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) throw std::system_error(failed, std::generic_category(), "posix_spawn");

  File ended(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!ended.is_open()) {
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    checked(-1, "pidfd_open");
  }
  return {.pid = pid, .link = std::move(mine), .output_pipe = std::move(read_end), .ended = std::move(ended)};
}

}  // namespace

/// The processes, and a thread that listens to them.
///
/// Invariant: a process that has ended is not reaped before the destructor, so that no signal meets a stranger which
/// was given its number.
class WorkerProcesses::Processes {
 public:
  Processes(const std::string& body, int64_t workers, const std::function<Environment(int64_t)>& environment) {
    try {
      for (int64_t w = 0; w < workers; ++w) all_.push_back(start(body, w, environment(w)));
      listener_ = std::thread([this] { listen(); });
    } catch (...) {
      end();
      throw;
    }
  }
  ~Processes() {
    const bool failed = ::testing::Test::HasFailure() || std::uncaught_exceptions() > 0;
    if (failed) std::cout << everything() << std::flush;
    end();
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  int64_t size() const { return static_cast<int64_t>(all_.size()); }
  const Process& at(int64_t worker) const { return all_.at(static_cast<std::size_t>(worker)); }

  template <class Read>
  auto locked(const Read& read) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return read();
  }

  /// Waits until `find()` gives something, and returns it. `hopeless()` says that it never will.
  template <class Find, class Hopeless>
  auto wait(int64_t worker, const std::string& what, milliseconds bound, const Find& find, const Hopeless& hopeless) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto found = find();
    changed_.wait_for(lock, bound, [&] { return (found = find()) || hopeless(); });
    if (found) return *found;
    const std::string how = hopeless() ? " before it ended" : " within " + std::to_string(bound.count()) + " ms";
    throw WorkerProcessesError("worker " + std::to_string(worker) + " did not " + what + how);
  }

 private:
  /// What all workers have done, for a person.
  std::string everything() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string text;
    for (std::size_t w = 0; w < all_.size(); ++w) {
      const Process& one = all_[w];
      text += "--- worker " + std::to_string(w) + ", process " + std::to_string(one.pid) + ", ";
      if (!one.ending) {
        text += "has not ended\n";
      } else if (one.ending->signal != 0) {
        text += "was killed by signal " + std::to_string(one.ending->signal) + "\n";
      } else {
        text += "ended with code " + std::to_string(one.ending->code) + "\n";
      }
      for (const Report& report : one.reports) text += "reported: " + report.text + "\n";
      text += one.output;
      if (!text.empty() && text.back() != '\n') text += '\n';
    }
    return text;
  }

  /// On the listener's thread, until all is over or the destructor wants it to end.
  void listen() {
    while (true) {
      std::vector<pollfd> files{{stop_.number(), POLLIN, 0}};
      for (const Process& one : all_) {
        for (const File* file : {&one.link, &one.output_pipe, &one.ended}) files.push_back({file->number(), POLLIN, 0});
      }
      if (poll(files.data(), files.size(), -1) < 0) continue;  // EINTR
      const std::lock_guard<std::mutex> lock(mutex_);
      for (std::size_t i = 0; i < all_.size(); ++i) {
        if (files[3 * i + 1].revents != 0) read_report(all_[i]);
        if (files[3 * i + 2].revents != 0) read_output(all_[i]);
        if (files[3 * i + 3].revents != 0) note_ending(all_[i]);
      }
      changed_.notify_all();
      if (files[0].revents != 0) return;
    }
  }

  static bool read_report(Process& one) {
    std::string message(1 << 17, '\0');
    const ssize_t size = recv(one.link.number(), message.data(), message.size(), MSG_DONTWAIT);
    int64_t when = 0;
    if (size < static_cast<ssize_t>(sizeof(when))) {
      if (size >= 0 || errno != EAGAIN) one.link.close();
      return false;
    }
    std::memcpy(&when, message.data(), sizeof(when));
    one.reports.push_back({message.substr(sizeof(when), static_cast<std::size_t>(size) - sizeof(when)),
                           Time(steady_clock::duration(when))});
    return true;
  }

  static bool read_output(Process& one) {
    std::array<char, 1 << 16> buffer;
    pollfd ready{one.output_pipe.number(), POLLIN, 0};
    if (poll(&ready, 1, 0) <= 0) return false;
    const ssize_t size = read(one.output_pipe.number(), buffer.data(), buffer.size());
    if (size <= 0) {
      one.output_pipe.close();
      return false;
    }
    one.output.append(buffer.data(), static_cast<std::size_t>(size));
    return true;
  }

  /// Its last words come first.
  static void note_ending(Process& one) {
    const Time now = steady_clock::now();
    while (one.link.is_open() && read_report(one)) {
    }
    while (one.output_pipe.is_open() && read_output(one)) {
    }
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(one.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const bool exited = info.si_code == CLD_EXITED;
    one.ending = Ending{exited ? info.si_status : -1, exited ? 0 : info.si_status, now};
    one.ended.close();
  }

  /// Kills what is left and reaps it.
  void end() {
    for (const Process& one : all_) kill(-one.pid, SIGKILL);
    if (listener_.joinable()) {
      const uint64_t one = 1;
      if (write(stop_.number(), &one, sizeof(one)) < 0) std::abort();
      listener_.join();
    }
    for (const Process& one : all_) {
      while (waitpid(one.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }

  File stop_{checked(eventfd(0, EFD_CLOEXEC), "eventfd")};
  std::vector<Process> all_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::thread listener_;

  friend class WorkerProcesses;
};

WorkerProcesses::WorkerProcesses(const std::string& body, int64_t workers, const Environment& environment)
    : WorkerProcesses(body, workers, [&](int64_t) { return environment; }) {}

WorkerProcesses::WorkerProcesses(const std::string& body, int64_t workers,
                                 const std::function<Environment(int64_t)>& environment)
    : processes_(std::make_unique<Processes>(body, workers, environment)) {}

WorkerProcesses::~WorkerProcesses() = default;

int64_t WorkerProcesses::size() const { return processes_->size(); }

pid_t WorkerProcesses::pid(int64_t worker) const { return processes_->at(worker).pid; }

Report WorkerProcesses::expect(int64_t worker, const std::string& beginning, milliseconds bound) {
  const Process& one = processes_->at(worker);
  const auto find = [&]() -> std::optional<Report> {
    for (const Report& report : one.reports) {
      if (report.text.rfind(beginning, 0) == 0) return report;
    }
    return std::nullopt;
  };
  return processes_->wait(worker, "report '" + beginning + "'", bound, find, [&] { return one.ending.has_value(); });
}

std::vector<Report> WorkerProcesses::expect_all(const std::string& beginning, milliseconds bound) {
  std::vector<Report> all;
  for (int64_t w = 0; w < size(); ++w) all.push_back(expect(w, beginning, bound));
  return all;
}

std::vector<Report> WorkerProcesses::reports(int64_t worker) const {
  return processes_->locked([&] { return processes_->at(worker).reports; });
}

void WorkerProcesses::tell(int64_t worker, const std::string& word) {
  // The listener closes the link, under the same lock, when the worker has ended.
  processes_->locked([&] {
    const File& link = processes_->at(worker).link;
    if (link.is_open()) send(link.number(), word.data(), word.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

void WorkerProcesses::tell_all(const std::string& word) {
  for (int64_t w = 0; w < size(); ++w) tell(w, word);
}

Time WorkerProcesses::signal(int64_t worker, int signal) {
  const Time now = steady_clock::now();
  kill(processes_->at(worker).pid, signal);
  return now;
}

Ending WorkerProcesses::wait(int64_t worker, milliseconds bound) {
  const Process& one = processes_->at(worker);
  return processes_->wait(
      worker, "end", bound, [&] { return one.ending; }, [] { return false; });
}

std::string WorkerProcesses::output(int64_t worker) const {
  return processes_->locked([&] { return processes_->at(worker).output; });
}

}  // namespace lockstep::testing
