// A program of parameter servers that counts its steps, for scripts/test-chaos: `lockstep run` starts its tasks, and
// the script lets them fail. A task that gets SIGUSR1 ends one of its connections, and one that gets SIGUSR2 hears
// nothing more by one of them.
// Usage: counting_tasks FOLDER STEPS SAVE_EVERY PAUSE_US STALENESS ATTEMPTS LOST_MS, STALENESS -1 for unbounded
#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/filter.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/core/process/exit_codes.h"
#include "tests/server/remote/counted_program.h"

namespace {

constexpr int kWrongUse = 64;
constexpr int kMostFiles = 256;

std::vector<int> connections() {
  std::vector<int> all;
  for (int file = 0; file < kMostFiles; ++file) {
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    if (getpeername(file, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.ss_family == AF_INET) {
      all.push_back(file);
    }
  }
  return all;
}

/// The kernel drops all that comes on the connection, as a firewall does.
void silence(int connection) {
  sock_filter drop{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
  const sock_fprog program{.len = 1, .filter = &drop};
  setsockopt(connection, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

/// In a thread of its own. All other threads have these signals blocked.
void cut_when_told(const sigset_t& signals) {
  std::mt19937 random(static_cast<unsigned>(getpid()));
  for (int number = 0; sigwait(&signals, &number) == 0;) {
    const std::vector<int> all = connections();
    if (all.empty()) continue;
    const int one = all[random() % all.size()];
    if (number == SIGUSR1) {
      shutdown(one, SHUT_RDWR);
    } else {
      silence(one);
    }
  }
}

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return kWrongUse;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  sigaddset(&signals, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread(cut_when_told, signals).detach();
  try {
    const int64_t staleness = std::stoll(argv[5]);
    const int64_t attempts = std::stoll(argv[6]);
    lockstep::ParameterServerOptions options{
        .cluster = lockstep::resolve_cluster(),
        .staleness = staleness < 0 ? std::optional<int64_t>() : staleness,
        .timeouts = {.join = std::chrono::seconds(60), .lost = std::chrono::milliseconds(std::stoll(argv[7]))},
        .attempts = attempts};
    const bool is_chief = options.cluster->job == "chief";
    const auto workers = static_cast<int64_t>(options.cluster->jobs["worker"].size());
    lockstep::testing::CountedProgram program(
        std::move(options), {.steps = std::stoll(argv[2]),
                             .save_every = std::stoll(argv[3]),
                             .chunk = 4 * workers,
                             .none_closes = attempts >= 1000,
                             .pause = std::chrono::microseconds(std::stoll(argv[4])),
                             .folder = argv[1],
                             .begins = [](int64_t steps) { say(fmt::format("begins at step {}", steps)); }});
    lockstep::testing::CountedResult result;
    const int code = program.coordinate(result);
    if (is_chief)
      say(fmt::format("exact: {} steps before, {} counted, {} closed", result.began_at, result.counted, result.closed));
    return code;
  } catch (const lockstep::testing::NotExact& error) {
    say(fmt::format("NOT EXACT: {}", error.what()));
    return static_cast<int>(lockstep::ExitCode::kDataError);
  } catch (const std::exception& error) {
    std::fputs(fmt::format("{}\n", lockstep::message_of(std::current_exception())).c_str(), stderr);
    return static_cast<int>(lockstep::exit_code_of(error));
  }
}
