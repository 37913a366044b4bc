// A worker that the kernel's out-of-memory killer kills, in a control group of the test's own.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "lockstep/core/process/control_group.h"
#include "tests/comm/faulty_workers.h"

namespace lockstep::internal {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kLimit = 512 * kMiB;

bool write_line(const fs::path& path, const std::string& line) {
  std::ofstream file(path);
  file << line << std::endl;
  return file.good();
}

/// A group with a limit of memory inside the one of this process; skips where none can be made.
class MemoryGroup {
 public:
  MemoryGroup() {
    for_each_control_group("", "memory", [&](const std::string& folder, bool unified) {
      if (!folder_.empty() || !fs::exists(folder)) return;
      const fs::path group = folder + "/lockstep-test-" + std::to_string(getpid());
      std::error_code error;
      if (!fs::create_directory(group, error)) return;
      if (write_line(group / (unified ? "memory.max" : "memory.limit_in_bytes"), std::to_string(kLimit))) {
        folder_ = group;
      } else {
        fs::remove(group, error);
      }
    });
  }
  /// Its processes have ended.
  ~MemoryGroup() {
    if (!folder_.empty()) rmdir(folder_.c_str());
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

/// Moves into the group HOW; then worker 1 takes memory until it is killed, and the others wait for it in a call.
WORKER_BODY(takes_memory) {
  if (!write_line(fs::path(std::getenv("HOW")) / "cgroup.procs", std::to_string(getpid()))) {
    throw std::runtime_error("it cannot move into the control group");
  }
  const auto world = join_from_environment();
  world->agree("all are here");
  if (my_worker_index() != 1) return call_until_failure(*world, 0);
  write_line("/proc/self/oom_score_adj", "1000");
  while (true) {
    void* const memory = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) std::memset(memory, 1, kMiB);
  }
}

class OomKill : public WorkerFaults {};

TEST_P(OomKill, IsToldFromOtherKillsToTheWorkersOfTheHost) {
  const MemoryGroup group;
  if (group.folder().empty()) GTEST_SKIP() << "no control group with a limit of memory can be made here";
  const auto started = start("takes_memory", {.how = group.folder()});
  WorkerProcesses& workers = *started;
  for (const int64_t w : all_but(1)) {
    const Report failed = workers.expect(w, "failed after ");
    const std::string expected = fmt::format(
        "worker 1 (process {}{}) is gone: it was killed or crashed; the kernel's out-of-memory killer has killed 1 "
        "process of this control group since the run began",
        workers.pid(1), GetParam() == "shared-memory" ? "" : " on host " + host_name());
    EXPECT_NE(failed.text.find(expected), std::string::npos) << failed.text;
  }
  EXPECT_EQ(workers.wait(1).signal, SIGKILL);
}

INSTANTIATE_TEST_SUITE_P(Engines, OomKill, ::testing::Values("shared-memory", "tls"),
                         [](const auto& one) { return one.param == "shared-memory" ? "SharedMemory" : one.param; });

}  // namespace
}  // namespace lockstep::internal
