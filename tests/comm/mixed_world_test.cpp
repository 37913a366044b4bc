// Workers of several hosts, some of which share one: what moves their bytes, what is left of it, and what happens where
// memory cannot be shared.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "tests/support/free_port.h"
#include "tests/support/hosts.h"
#include "tests/support/worker_processes.h"

namespace lockstep {
namespace {

using testing::my_worker_index;
using testing::report;
using testing::Report;
using testing::Time;
using testing::WorkerProcesses;

std::shared_ptr<World> join_by_environment() {
  return testing::join_from_host({.hosts = std::getenv("HOSTS"),
                                  .worker = my_worker_index(),
                                  .port = static_cast<uint16_t>(std::stoi(std::getenv("PORT"))),
                                  .plaintext = std::string(std::getenv("ENGINE")) == "tcp"});
}

int64_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:lockstep") != std::string::npos ? 1 : 0;
  return count;
}

int64_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

/// Bytes that depend on both workers, of odd sizes, all of which must come.
void exchange_and_check(World& world) {
  const auto workers = static_cast<std::size_t>(world.num_workers());
  const auto me = static_cast<std::size_t>(world.worker_index());
  const auto size = [](std::size_t from, std::size_t to) { return 100'003 * (from + 1) + 7 * to; };
  const auto value = [](std::size_t from, std::size_t to, std::size_t i) {
    return static_cast<std::byte>(31 * from + 7 * to + i % 251);
  };
  std::vector<std::vector<std::byte>> sent(workers);
  std::vector<std::vector<std::byte>> got(workers);
  for (std::size_t w = 0; w < workers; ++w) {
    sent[w].resize(size(me, w));
    got[w].resize(size(w, me));
    for (std::size_t i = 0; i < sent[w].size(); ++i) sent[w][i] = value(me, w, i);
  }
  const std::vector<std::span<const std::byte>> to(sent.begin(), sent.end());
  const std::vector<std::span<std::byte>> from(got.begin(), got.end());
  world.exchange(to, from);
  for (std::size_t w = 0; w < workers; ++w) {
    for (std::size_t i = 0; w != me && i < got[w].size(); ++i) {
      if (got[w][i] != value(w, me, i)) throw std::runtime_error(fmt::format("byte {} of worker {} is wrong", i, w));
    }
  }
}

/// Says how the bytes move, and that they do.
WORKER_BODY(joins_a_mixed_job) {
  set_log_sink([](LogLevel, std::string_view line) { report("log: " + std::string(line)); });
  const auto world = join_by_environment();
  exchange_and_check(*world);
  report(fmt::format("{} mappings, {}", shared_mappings(), world->describe()));
  world->agree("all have reported");
}

/// The same, and worker 0 may make no memory that can be shared: a filter as of containers refuses it.
WORKER_BODY(joins_where_memory_is_forbidden) {
  set_log_sink([](LogLevel, std::string_view line) { report("log: " + std::string(line)); });
  if (my_worker_index() == 0) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program = {.len = std::size(filter), .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      report("not allowed");
      return;
    }
  }
  report("allowed");
  const auto world = join_by_environment();
  exchange_and_check(*world);
  report(fmt::format("{} mappings, {}", shared_mappings(), world->describe()));
  world->agree("all have reported");
}

/// Exchanges until another worker is killed, and counts what is left then.
WORKER_BODY(counts_what_is_left) {
  const int64_t before = open_files();
  auto world = join_by_environment();
  report("joined");
  const std::vector<std::vector<std::byte>> sent(static_cast<std::size_t>(world->num_workers()),
                                                 std::vector<std::byte>(1'000'001));
  std::vector<std::vector<std::byte>> got = sent;
  const std::vector<std::span<const std::byte>> to(sent.begin(), sent.end());
  const std::vector<std::span<std::byte>> from(got.begin(), got.end());
  try {
    while (true) world->exchange(to, from);
  } catch (const PeerError&) {
    world.reset();
    report(fmt::format("left: {} files, {} mappings", open_files() - before, shared_mappings()));
  }
}

std::map<int, std::string> files_by_number() {
  std::map<int, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    files[std::stoi(entry.path().filename())] = std::filesystem::read_symlink(entry.path(), ignored).string();
  }
  // The folder itself is closed again.
  std::erase_if(files, [](const auto& one) { return fcntl(one.first, F_GETFD) < 0; });
  return files;
}

/// Names each file that the World has opened and that a program started by this one would inherit.
WORKER_BODY(looks_for_files_to_inherit) {
  const auto before = files_by_number();
  const auto world = join_by_environment();
  exchange_and_check(*world);
  std::string inherited;
  int opened = 0;
  for (const auto& [number, name] : files_by_number()) {
    const int flags = fcntl(number, F_GETFD);
    if (before.contains(number)) continue;
    ++opened;
    if ((flags & FD_CLOEXEC) == 0) inherited += " " + name;
  }
  report(fmt::format("opened {}", opened > 0 ? "some" : "none"));
  report("to inherit:" + inherited);
  world->agree("all have reported");
}

class MixedWorld : public ::testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<WorkerProcesses> start(const std::string& body, const std::string& hosts) {
    return std::make_unique<WorkerProcesses>(
        body, static_cast<int64_t>(hosts.size()),
        WorkerProcesses::Environment{
            {"HOSTS", hosts}, {"PORT", std::to_string(testing::free_port())}, {"ENGINE", GetParam()}});
  }
  static std::vector<std::string> log_of(const WorkerProcesses& workers, int64_t worker) {
    std::vector<std::string> lines;
    for (const Report& one : workers.reports(worker)) {
      if (one.text.starts_with("log: ")) lines.push_back(one.text);
    }
    return lines;
  }
};

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_P(MixedWorld, MovesBytesBetweenWorkersOfAHostThroughMemoryAndSaysSo) {
  for (const std::string hosts : {"0011", "0001", "011"}) {
    const auto started = start("joins_a_mixed_job", hosts);
    WorkerProcesses& workers = *started;
    for (int64_t w = 0; w < workers.size(); ++w) {
      const auto here = std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(w)]);
      const std::string mappings = fmt::format("{} mappings, ", here - 1);
      const std::string said = workers.expect(w, mappings, std::chrono::seconds(60)).text;
      EXPECT_TRUE(said.starts_with(mappings + GetParam() + ": every connection is")) << said;
      EXPECT_TRUE(has(said, "workers of one host exchange bytes through memory")) << said;
      EXPECT_FALSE(has(said, "could not")) << said;
      EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
    }
  }
}

TEST_P(MixedWorld, LeavesTheConnectionsWhereAllOrNoneShareAHost) {
  for (const std::string hosts : {"000", "012"}) {
    const auto started = start("joins_a_mixed_job", hosts);
    WorkerProcesses& workers = *started;
    for (int64_t w = 0; w < workers.size(); ++w) {
      const std::string said = workers.expect(w, "0 mappings", std::chrono::seconds(60)).text;
      EXPECT_FALSE(has(said, "memory")) << said;
      EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
    }
  }
}

TEST_P(MixedWorld, UsesTheNetworkWhereMemoryCannotBeSharedAndSaysSoOnce) {
  const auto started = start("joins_where_memory_is_forbidden", "0001");
  WorkerProcesses& workers = *started;
  for (int64_t w = 0; w < workers.size(); ++w) {
    if (workers.expect(w, "").text == "not allowed") GTEST_SKIP() << "this kernel lets no process filter its calls";
  }
  for (int64_t w = 0; w < workers.size(); ++w) {
    // Workers 1 and 2 share memory with each other.
    const std::string said = workers.expect(w, w == 1 || w == 2 ? "1 mappings" : "0 mappings").text;
    EXPECT_TRUE(has(said, w == 3 ? "through memory" : "but for some that could not")) << said;
    EXPECT_TRUE(has(said, "no host has one copy")) << said;
    auto log = log_of(workers, w);
    if (w == 0) {
      ASSERT_EQ(log.size(), 2U);
      EXPECT_TRUE(has(log[1], "worker 0 has no memory in common with its host")) << log[1];
      EXPECT_TRUE(has(log[1], "Operation not permitted")) << log[1];
      log.pop_back();
    }
    ASSERT_EQ(log.size(), w == 3 ? 0U : 1U);
    if (w == 3) continue;
    EXPECT_TRUE(has(log[0], w == 0 ? "workers 1, 2" : "worker 0")) << log[0];
    EXPECT_TRUE(has(log[0], "Operation not permitted")) << log[0];
  }
  for (int64_t w = 0; w < workers.size(); ++w) EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
}

TEST_P(MixedWorld, LeavesNeitherFilesNorMemoryAfterAWorkerIsKilled) {
  std::mt19937 random(11);
  for (const int64_t killed : {0, 1, 3}) {
    const auto started = start("counts_what_is_left", "0011");
    WorkerProcesses& workers = *started;
    workers.expect_all("joined");
    const Time until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 20'000);
    while (std::chrono::steady_clock::now() < until) {
    }
    workers.signal(killed, SIGKILL);
    for (int64_t w = 0; w < workers.size(); ++w) {
      if (w == killed) continue;
      EXPECT_EQ(workers.expect(w, "left: ").text, "left: 0 files, 0 mappings") << "worker " << w;
      EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
    }
  }
}

TEST_P(MixedWorld, OpensNoFileThatAnotherProgramInherits) {
  const auto started = start("looks_for_files_to_inherit", "0011");
  started->expect_all("opened some");
  for (const Report& one : started->expect_all("to inherit:")) EXPECT_EQ(one.text, "to inherit:");
}

INSTANTIATE_TEST_SUITE_P(Engines, MixedWorld, ::testing::Values("tls", "tcp"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace lockstep
