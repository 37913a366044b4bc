// How many files a test's process may open.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace lockstep::testing {

/// While it lives, this process may have at least `least` open files, where the system allows that.
class OpenFiles {
 public:
  explicit OpenFiles(rlim_t least) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit more = before_;
    more.rlim_cur = std::min(more.rlim_max, std::max(more.rlim_cur, least));
    is_enough_ = more.rlim_cur >= least && setrlimit(RLIMIT_NOFILE, &more) == 0;
  }
  ~OpenFiles() { setrlimit(RLIMIT_NOFILE, &before_); }
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;
  bool is_enough() const { return is_enough_; }

 private:
  rlimit before_{};
  bool is_enough_ = false;
};

/// While it lives, this process can open no file: what is open stays open.
class NoFiles {
 public:
  NoFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoFiles() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoFiles(const NoFiles&) = delete;
  NoFiles& operator=(const NoFiles&) = delete;

 private:
  rlimit before_{};
};

}  // namespace lockstep::testing
