// `lockstep bench wire`: how fast bytes go between workers of this machine, beside a plain copy in memory.
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/join/join.h"
#include "lockstep/comm/join/reserved_port.h"
#include "lockstep/comm/network/network_world.h"
#include "lockstep/core/error.h"
#include "tools/bench/bench_report.h"
#include "tools/console.h"
#include "tools/whole_file.h"

namespace lockstep::tools {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Processes that this one has forked, one for each worker but worker 0, which is this process.
class Workers {
 public:
  /// Returns in every worker; index() says which one it is.
  explicit Workers(int64_t workers) {
    const pid_t parent = getpid();
    for (int64_t w = 1; w < workers; ++w) {
      const pid_t child = fork();
      if (child < 0)
        throw ClusterError("LS-LAUNCH",
                           fmt::format("worker {} could not be started: fork: {}", w, std::strerror(errno)),
                           "raise the limit on processes (ulimit -u), or give fewer --workers");
      if (child > 0) {
        children_.push_back(child);
        continue;
      }
      children_.clear();
      index_ = w;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      return;
    }
  }
  ~Workers() {
    for (const pid_t child : children_) kill(child, SIGKILL);  // none is left where all went well
    for (const pid_t child : children_) waitpid(child, nullptr, 0);
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int64_t index() const { return index_; }
  void wait_for_the_end() {
    for (const pid_t child : children_) waitpid(child, nullptr, 0);
    children_.clear();
  }

 private:
  int64_t index_ = 0;
  std::vector<pid_t> children_;
};

/// Each worker on a core, in turn.
void pin(int64_t worker) {
  cpu_set_t all;
  CPU_ZERO(&all);
  if (sched_getaffinity(0, sizeof(all), &all) != 0) return;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &all)) cores.push_back(core);
  }
  cpu_set_t mine;
  CPU_ZERO(&mine);
  CPU_SET(cores[static_cast<std::size_t>(worker) % cores.size()], &mine);
  sched_setaffinity(0, sizeof(mine), &mine);
}

/// What a worker sends to each other one, and gets from it.
struct Buffers {
  /// `exchanges(w)` says whether any bytes go to worker w, and from it.
  template <class Exchanges>
  Buffers(int64_t workers, int64_t bytes, const Exchanges& exchanges)
      : sent(static_cast<std::size_t>(workers)), memory(sent.size()) {
    for (std::size_t w = 0; w < sent.size(); ++w) {
      const std::size_t count = exchanges(static_cast<int64_t>(w)) ? static_cast<std::size_t>(bytes) : 0;
      sent[w].resize(count);
      memory[w].resize(count + kApart);
    }
    to.assign(sent.begin(), sent.end());
    for (auto& one : memory) from.push_back(std::span(one).subspan(kApart));
  }
  /// A copy between two addresses whose last twelve bits are equal is many times slower.
  static constexpr std::size_t kApart = 448;
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> memory;  // that `from` shows
  std::vector<std::span<const std::byte>> to;
  std::vector<std::span<std::byte>> from;
};

std::byte pattern(int64_t from, int64_t to, std::size_t i) {
  return static_cast<std::byte>(static_cast<std::size_t>(31 * from + 7 * to) + i % 251);
}

/// No match, no number.
void check(World& world, Buffers& buffers) {
  const int64_t me = world.worker_index();
  for (int64_t w = 0; w < world.num_workers(); ++w) {
    auto& sent = buffers.sent[static_cast<std::size_t>(w)];
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = pattern(me, w, i);
  }
  world.exchange(buffers.to, buffers.from);
  for (int64_t w = 0; w < world.num_workers(); ++w) {
    if (w == me) continue;
    const std::span<std::byte> got = buffers.from[static_cast<std::size_t>(w)];
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] == pattern(w, me, i)) continue;
      throw InternalError("LS-INTERNAL", fmt::format("byte {} of {} from worker {} is wrong", i, got.size(), w),
                          "please report it");
    }
  }
}

/// Worker 0's times; the others take part. Worker 0 decides how many calls follow, and 0 ends it.
Timing measure_exchange(World& world, Buffers& buffers, const TimingOptions& options) {
  const auto round = [&](int64_t calls) {
    const auto begin = Clock::now();
    for (int64_t i = 0; i < calls; ++i) world.exchange(buffers.to, buffers.from);
    return seconds_since(begin);
  };
  if (world.worker_index() != 0) {
    while (const int64_t calls = std::stoll(world.agree("").front())) round(calls);
    return {};
  }
  const Timing timing = measure_seconds(
      [&](int64_t calls) {
        world.agree(std::to_string(calls));
        return round(calls);
      },
      options);
  world.agree("0");
  return timing;
}

/// Worker 0 copies as many bytes as it sends in one call, while the others wait.
Timing measure_copy(World& world, Buffers& buffers, const TimingOptions& options) {
  Timing timing;
  if (world.worker_index() == 0) {
    timing = measure(
        [&](int64_t calls) {
          for (int64_t i = 0; i < calls; ++i) {
            for (std::size_t w = 1; w < buffers.sent.size(); ++w) {
              std::memcpy(buffers.from[w].data(), buffers.sent[w].data(), buffers.sent[w].size());
            }
          }
        },
        options);
  }
  world.agree("");
  return timing;
}

std::shared_ptr<World> join_workers(const BenchWireOptions& options, int64_t worker, const std::string& job,
                                    uint16_t port) {
  if (options.hosts == 1) {
    ClusterSpec cluster;
    cluster.jobs["worker"].resize(static_cast<std::size_t>(options.workers));
    cluster.task = worker;
    cluster.job_id = job;
    if (port != 0) cluster.jobs["worker"][0] = fmt::format("127.0.0.1:{}", port);
    return join(cluster, {.engine = options.engine});
  }
  const WorkerTimeouts timeouts;
  auto network = std::make_unique<internal::NetworkRendezvous>(
      internal::NetworkJob{.num_workers = options.workers,
                           .worker_index = worker,
                           .chief = {"127.0.0.1"},
                           .chief_port = port,
                           .own_address = "127.0.0.1",
                           .id = job,
                           .plaintext = options.engine == "tcp",
                           .host_id = fmt::format("host {}", worker * options.hosts / options.workers)});
  network->meet(timeouts.join);
  return internal::connect_network(std::move(network), timeouts);
}

void check_hosts(const BenchWireOptions& options) {
  if (options.hosts == 1 ||
      ((options.engine == "tls" || options.engine == "tcp") && options.hosts <= options.workers)) {
    return;
  }
  throw UsageError("LS-OPTION",
                   fmt::format("--hosts {} was given with --engine {} and --workers {}", options.hosts, options.engine,
                               options.workers),
                   "give at most as many hosts as workers, and the engine tls or tcp");
}

}  // namespace

int bench_wire(const BenchWireOptions& options) {
  check_hosts(options);
  WholeFile json(options.json);
  const int64_t pairs = options.pair ? 2 : options.workers * (options.workers - 1);
  check_fits(2.0 * static_cast<double>(pairs) *
                 static_cast<double>(*std::max_element(options.sizes.begin(), options.sizes.end())),
             "--sizes and --workers");
  const std::string job = fmt::format("bench-wire-{}", getpid());
  const internal::ReservedPort port;
  Workers processes(options.workers);
  const int64_t me = processes.index();
  pin(me);
  std::shared_ptr<World> world;
  try {
    world = join_workers(options, me, job, port.number());
    TimingOptions timing{.blocks = static_cast<int>(options.blocks), .block_seconds = options.block_seconds};
    std::vector<std::vector<std::string>> table{
        {"to each other worker", "exchange", "GB/s", "a copy of as much", "share"}};
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const uint64_t size : options.sizes) {
      Buffers buffers(options.workers, static_cast<int64_t>(size),
                      [&](int64_t w) { return w != me && (!options.pair || (w < 2 && me < 2)); });
      check(*world, buffers);
      const Timing exchange = measure_exchange(*world, buffers, timing);
      const Timing copy = measure_copy(*world, buffers, timing);
      if (me != 0) continue;
      const double others = options.pair ? 1 : static_cast<double>(options.workers - 1);
      const double rate = static_cast<double>(size) * others / exchange.median;
      const double share = copy.median / exchange.median;
      table.push_back({size_text(static_cast<int64_t>(size)), text_of(exchange), fmt::format("{:.3f}", rate / 1e9),
                       text_of(copy), size == 0 ? "-" : percent(share)});
      rows.push_back({{"bytes", size},
                      {"us", json_of(exchange, 1e6)},
                      {"gb_per_second", rate / 1e9},
                      {"copy_us", json_of(copy, 1e6)},
                      {"share_of_copy", share}});
    }
    world->agree("");  // nobody ends before all have measured
    if (me != 0) {
      std::fflush(nullptr);
      _exit(0);
    }
    processes.wait_for_the_end();
    print_columns(table);
    std::cout << world->describe() << "\n";
    json.write(nlohmann::ordered_json{{"bench", "wire"},
                                      {"workers", options.workers},
                                      {"engine", options.engine},
                                      {"hosts", options.hosts},
                                      {"pair", options.pair},
                                      {"describe", world->describe()},
                                      {"sizes", rows}}
                   .dump(2) +
               "\n");
    json.commit();
    return 0;
  } catch (const std::exception& error) {
    if (me == 0) throw;
    if (world) world->abort(error.what());  // worker 0 reports it
    _exit(1);
  }
}

}  // namespace lockstep::tools
