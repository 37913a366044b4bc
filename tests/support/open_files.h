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

}  // namespace lockstep::testing
