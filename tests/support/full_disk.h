// A disk that is full, and what is said of it.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/log.h"

namespace lockstep::testing {

/// While it exists, no file of this process can grow beyond `size` bytes, as on a full disk. The kernel then writes
/// what fits, and fails behind that.
class FullDisk {
 public:
  explicit FullDisk(rlim_t size) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit full{size, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

/// What is logged while it exists.
class Warnings {
 public:
  Warnings() {
    set_log_sink([this](LogLevel level, std::string_view text) {
      if (level == LogLevel::kWarning) texts.emplace_back(text);
    });
  }
  ~Warnings() { set_log_sink({}); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  std::vector<std::string> texts;
};

}  // namespace lockstep::testing
