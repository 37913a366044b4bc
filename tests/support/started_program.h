// A program that a test watches while it runs.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::testing {

/// Runs a program with pipes for its two outputs. Every wait ends after a minute with an exception.
class StartedProgram {
 public:
  /// `prepare` runs in the child before the program, for example to change what it inherits. A pipe that the program
  /// and all that it starts hold open tells when nobody of them lives any more: is_nobody_left().
  explicit StartedProgram(
      const std::vector<std::string>& command, const std::function<void()>& prepare = [] {}) {
    for (Pipe* const pipe : {&output_, &errors_, &life_}) {
      if (pipe2(pipe->data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    }
    pid_ = fork();
    if (pid_ == 0) {
      dup2(output_[1], STDOUT_FILENO);
      dup2(errors_[1], STDERR_FILENO);
      if (dup(life_[1]) < 0) _exit(99);  // without close-on-exec
      prepare();
      std::vector<char*> words;
      for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
      words.push_back(nullptr);
      execvp(words[0], words.data());
      _exit(99);
    }
    for (Pipe* const pipe : {&output_, &errors_, &life_}) close_one((*pipe)[1]);
  }
  ~StartedProgram() {
    if (!reaped_) kill(pid_, SIGKILL);
    if (!reaped_) waitpid(pid_, nullptr, 0);
    for (Pipe* const pipe : {&output_, &errors_, &life_}) close_one((*pipe)[0]);
  }
  StartedProgram(const StartedProgram&) = delete;
  StartedProgram& operator=(const StartedProgram&) = delete;

  /// Every wait ends `seconds` from now, in place of a minute after the start.
  void allow(std::chrono::seconds seconds) { deadline_ = std::chrono::steady_clock::now() + seconds; }

  pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }
  /// What has been read so far.
  const std::string& output() const { return output_text_; }
  const std::string& errors() const { return errors_text_; }
  /// Reads until `enough()` holds.
  void read_until(const std::function<bool()>& enough) {
    while (!enough()) {
      if (!read_more()) throw std::runtime_error("ended before: " + output_text_ + errors_text_);
    }
  }
  void read_until_output_has(const std::string& text) {
    read_until([&] { return output_text_.find(text) != std::string::npos; });
  }
  void read_until_errors_have(const std::string& text) {
    read_until([&] { return errors_text_.find(text) != std::string::npos; });
  }
  /// Nobody reads its standard output any more.
  void close_output() { close_one(output_[0]); }

  /// Reads to the end; the exit code, or minus the signal.
  int wait() {
    while (read_more()) {
    }
    return wait_unread();
  }
  /// The same without reading.
  int wait_unread() {
    const int file = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    pollfd process{file, POLLIN, 0};
    while (poll(&process, 1, 1000) == 0) check_deadline();
    close(file);
    int status = 0;
    waitpid(pid_, &status, 0);
    reaped_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  /// Waits until the program and all that it started have ended, at most `seconds`; false where somebody is left.
  bool is_nobody_left(int seconds = 10) {
    pollfd life{life_[0], POLLIN, 0};
    return poll(&life, 1, seconds * 1000) == 1;
  }

 private:
  using Pipe = std::array<int, 2>;

  static void close_one(int& fd) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
  void check_deadline() const {
    if (std::chrono::steady_clock::now() > deadline_) throw std::runtime_error("the time is over: " + errors_text_);
  }
  bool read_more() {
    pollfd ends[] = {{output_[0], POLLIN, 0}, {errors_[0], POLLIN, 0}};
    if (output_[0] < 0 && errors_[0] < 0) return false;
    while (poll(ends, 2, 1000) <= 0) check_deadline();
    if (ends[0].revents != 0) read_from(output_[0], output_text_);
    if (ends[1].revents != 0) read_from(errors_[0], errors_text_);
    check_deadline();
    return true;
  }
  static void read_from(int& fd, std::string& text) {
    std::array<char, 65536> buffer;
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
    } else {
      close_one(fd);
    }
  }

  std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  Pipe output_{-1, -1};
  Pipe errors_{-1, -1};
  Pipe life_{-1, -1};
  pid_t pid_ = -1;
  bool reaped_ = false;
  std::string output_text_;
  std::string errors_text_;
};

}  // namespace lockstep::testing
