// Many workers that all come at once, as when a launcher starts a large job.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <iostream>
#include <string>
#include <vector>

#include "lockstep/comm/join.h"
#include "lockstep/core/log.h"
#include "tests/support/free_port.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using lockstep::testing::free_port;
using std::chrono::seconds;

/// The open files of this process that may exist, for as long as this lives.
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

TEST(ManyWorkers, JoinInTimeWhereAllComeAtOnce) {
  constexpr int64_t kWorkers = 64;
  const OpenFiles files(2 * kWorkers * kWorkers + 1000);
  if (!files.is_enough()) GTEST_SKIP() << "this process may not open a file for each connection (ulimit -Hn)";
  const uint16_t port = free_port();
  std::vector<std::string> expected;
  for (int64_t w = 0; w < kWorkers; ++w) expected.push_back(std::to_string(w));
  const auto worker = [&](int64_t w) {
    ClusterSpec cluster{.task = w};
    cluster.jobs["worker"].resize(kWorkers);
    cluster.jobs["worker"][0] = "127.0.0.1:" + std::to_string(port);
    cluster.secret = Secret("a secret of the test");
    // All share two cores here, and few heartbeats leave them to the work.
    const auto begin = Clock::now();
    const auto world = join(cluster, {.engine = "tls", .timeouts = {.join = seconds(90), .lost = seconds(60)}});
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    EXPECT_EQ(world->agree(std::to_string(w)), expected);
    return took;
  };
  std::vector<std::future<double>> workers;
  for (int64_t w = 0; w < kWorkers; ++w) workers.push_back(std::async(std::launch::async, worker, w));
  double slowest = 0;
  for (auto& one : workers) slowest = std::max(slowest, one.get());
  std::cout << kWorkers << " workers have joined after " << slowest << " s\n";
}

}  // namespace
}  // namespace lockstep
