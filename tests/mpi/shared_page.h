// What workers under mpirun and the test that has started them have in common: a file that all of them map. They have
// no other way to each other: mpirun closes what the test has opened.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep::testing {

/// One worker's lines. They are written once, by the worker.
struct WorkerPlace {
  std::atomic<int64_t> pid = 0;
  std::atomic<int64_t> calls = 0;
  std::atomic<int64_t> when = 0;  // of `text`, by CLOCK_MONOTONIC; 0: there is no text yet
  std::array<char, 4000> text = {};

  void say(std::string_view line) {
    text[line.copy(text.data(), text.size() - 1)] = '\0';
    when = std::chrono::steady_clock::now().time_since_epoch().count();
  }
  bool has_said() const { return when != 0; }
};

/// All zero when it is made.
struct SharedPage {
  static constexpr std::size_t kMostWorkers = 8;

  std::array<WorkerPlace, kMostWorkers> workers = {};
  std::array<std::atomic<uint64_t>, 4096> numbers = {};  // of the checks; see world_process.h

  /// Maps the file until the process ends; makes it where it is not there.
  static SharedPage& at(const std::string& path) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(SharedPage)) != 0) throw std::runtime_error("cannot make " + path);
    void* const memory = mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) throw std::runtime_error("cannot map " + path);
    return *static_cast<SharedPage*>(memory);  // zeros are its first state
  }
};

}  // namespace lockstep::testing
