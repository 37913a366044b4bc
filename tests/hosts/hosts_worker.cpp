// A worker that joins by what its environment says, makes calls until it is told to stop, and prints what happens:
// scripts/test-hosts runs it on several hosts and breaks the network between them.
//
// Each line begins with the milliseconds of CLOCK_MONOTONIC, which all hosts of the test share.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/comm/join/join.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process/exit_codes.h"
#include "lockstep/core/process/stop_request.h"
#include "tests/hosts/training.h"

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr char kUsage[] =
    "Usage: hosts_worker [--engine NAME] [--join MS] [--lost MS] [--calls N] [--bytes N,...] [--pause MS] [--train "
    "yes]\n"
    "Joins the other workers and makes calls: agree(), and where --bytes is given exchange() of so many bytes with "
    "each,\n"
    "in turn where there are several numbers. Stops after --calls calls, and where one of the workers gets SIGTERM. "
    "--pause lies between two calls.\n"
    "With --train the calls are steps of a training, and a digest of its weights is printed at the end; a process that "
    "is\n"
    "alone trains alone.\n"
    "Exit codes: 0 it has stopped so, 2 usage, 4 what came is not what was sent; where a call or join() has failed "
    "that\n"
    "of the error: 75 restartable, 78 configuration\n";

struct Settings {
  lockstep::JoinOptions join = {};
  int64_t calls = 0;  // no bound where it is 0
  std::vector<std::size_t> bytes = {};
  milliseconds pause{0};
  bool trains = false;
};

std::atomic<bool> is_told_to_stop = false;

double milliseconds_of(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

/// Any thread may call it.
void print(std::string text) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at)) text.replace(at, 1, " | ");
  std::fputs(fmt::format("{:.3f} {}\n", milliseconds_of(Clock::now().time_since_epoch()), text).c_str(), stdout);
  std::fflush(stdout);
}

/// "1,300001"; nothing where the only number is 0.
std::vector<std::size_t> numbers_of(const std::string& text) {
  std::vector<std::size_t> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) numbers.push_back(std::stoull(part));
  if (numbers == std::vector<std::size_t>{0}) numbers.clear();
  return numbers;
}

/// Throws std::exception where a flag or its value is wrong.
Settings settings_of(std::span<char*> words) {
  Settings settings;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const std::string_view flag = words[i];
    if (i + 1 == words.size()) throw std::invalid_argument(fmt::format("{} needs a value", flag));
    const std::string value = words[i + 1];
    if (flag == "--engine") {
      settings.join.engine = value;
    } else if (flag == "--join") {
      settings.join.timeouts.join = milliseconds(std::stoll(value));
    } else if (flag == "--lost") {
      settings.join.timeouts.lost = milliseconds(std::stoll(value));
    } else if (flag == "--calls") {
      settings.calls = std::stoll(value);
    } else if (flag == "--bytes") {
      settings.bytes = numbers_of(value);
    } else if (flag == "--pause") {
      settings.pause = milliseconds(std::stoll(value));
    } else if (flag == "--train") {
      settings.trains = value == "yes";
    } else {
      throw std::invalid_argument(fmt::format("there is no flag {}", flag));
    }
  }
  return settings;
}

/// What worker `from` sends in this call, in each byte.
std::byte content_of(int64_t call, int64_t from) { return static_cast<std::byte>(call * 31 + from * 7 + 1); }

/// Memory for exchange() with each worker, of at most so many bytes, and what is in it.
class Exchange {
 public:
  Exchange(int64_t workers, int64_t worker, std::size_t most)
      : worker_(worker), sent_(most), got_(static_cast<std::size_t>(workers), std::vector<std::byte>(most)) {}

  /// How long the call itself took. Throws a std::logic_error where what has come is not what was sent.
  Clock::duration run(lockstep::World& world, int64_t call, std::size_t bytes) {
    to_.assign(got_.size(), std::span<const std::byte>(sent_).first(bytes));
    from_.clear();
    for (std::vector<std::byte>& one : got_) from_.push_back(std::span(one).first(bytes));
    std::fill(sent_.begin(), sent_.end(), content_of(call, worker_));
    const Clock::time_point begin = Clock::now();
    world.exchange(to_, from_);
    const Clock::duration took = Clock::now() - begin;
    for (std::size_t w = 0; w < from_.size(); ++w) {
      const auto from = static_cast<int64_t>(w);
      const std::byte content = content_of(call, from);
      const bool is_right =
          std::all_of(from_[w].begin(), from_[w].end(), [&](std::byte one) { return one == content; });
      if (from != worker_ && !is_right) {
        throw std::logic_error(fmt::format("wrong bytes from worker {} in call {}", from, call));
      }
    }
    return took;
  }

 private:
  const int64_t worker_;
  std::vector<std::byte> sent_;
  std::vector<std::vector<std::byte>> got_;  // by worker
  std::vector<std::span<const std::byte>> to_;
  std::vector<std::span<std::byte>> from_;
};

/// Makes calls until `call(number)` returns that all workers stop, which they do after the same call.
void call_until_told(const Settings& settings, const std::function<bool(int64_t)>& call,
                     const Clock::duration& exchanging) {
  Clock::duration longest{};
  Clock::time_point next_line = Clock::now();
  int64_t calls = 0;
  try {
    while (settings.calls == 0 || calls < settings.calls) {
      const Clock::time_point begin = Clock::now();
      if (call(calls)) break;
      ++calls;
      longest = std::max(longest, Clock::now() - begin);
      if (Clock::now() >= next_line) {
        print(fmt::format("call {}", calls));
        next_line = Clock::now() + milliseconds(100);
      }
      if (settings.pause.count() > 0) std::this_thread::sleep_for(settings.pause);
    }
  } catch (const lockstep::Error& error) {
    print(fmt::format("failed after {} calls: {}", calls, error.what()));
    throw;
  }
  print(fmt::format("done after {} calls; exchange() took {:.3f} s in all, the longest call {:.3f} s", calls,
                    milliseconds_of(exchanging) / 1000, milliseconds_of(longest) / 1000));
}

void exchange_until_told(lockstep::World& world, const Settings& settings) {
  const std::vector<std::size_t>& sizes = settings.bytes;
  const std::size_t most = sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
  Exchange exchange(world.num_workers(), world.worker_index(), most);
  Clock::duration exchanging{};
  const auto call = [&](int64_t number) {
    const std::vector<std::string> all = world.agree(is_told_to_stop ? "stop" : "go");
    if (std::find(all.begin(), all.end(), "stop") != all.end()) return true;
    if (!sizes.empty())
      exchanging += exchange.run(world, number, sizes[static_cast<std::size_t>(number) % sizes.size()]);
    return false;
  };
  call_until_told(settings, call, exchanging);
}

void train_until_told(std::shared_ptr<lockstep::World> world, const Settings& settings) {
  HostsTraining training(std::move(world));
  bool stops = false;
  const auto step = [&](int64_t) {
    if (std::exchange(stops, false)) return true;  // after the last step, which was whole
    if (is_told_to_stop) lockstep::request_stop();
    stops = training.step();
    return false;
  };
  try {
    call_until_told(settings, step, {});
  } catch (const lockstep::Error&) {
    print("has " + training.digest());
    throw;
  }
  print("has " + training.digest());
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  Settings settings;
  try {
    settings = settings_of(words.subspan(1));
  } catch (const std::exception& error) {
    std::fputs(fmt::format("hosts_worker: {}\n{}", error.what(), kUsage).c_str(), stderr);
    return 2;
  }
  std::signal(SIGTERM, [](int) { is_told_to_stop = true; });
  lockstep::set_log_sink([](lockstep::LogLevel, std::string_view line) { print(fmt::format("log: {}", line)); });
  print("started");
  std::shared_ptr<lockstep::World> world;
  try {
    world = lockstep::join(lockstep::resolve_cluster(), settings.join);
  } catch (const lockstep::Error& error) {
    print(fmt::format("not joined: {}", error.what()));
    return static_cast<int>(lockstep::exit_code_of(error));
  }
  print(fmt::format("joined {}", world->describe()));
  try {
    if (settings.trains) {
      train_until_told(std::move(world), settings);
    } else {
      exchange_until_told(*world, settings);
    }
  } catch (const lockstep::Error& error) {
    return static_cast<int>(lockstep::exit_code_of(error));
  } catch (const std::logic_error& error) {
    print(error.what());
    return 4;
  }
  return 0;
}
