#include "tools/bench/calibration.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/core/fingerprint.h"
#include "lockstep/core/pause_cpu.h"
#include "lockstep/reduce/loops/stream_copy.h"
#include "lockstep/replica/pool/lanes.h"
#include "tools/bench/pinned_threads.h"
#include "tools/bench/stream_loops.h"

namespace lockstep::tools {

namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
const TimingOptions kShort{.blocks = 15, .block_seconds = 0.02, .warm_up_calls = 2};

/// How much a second, of what takes so long.
Timing rate_of(double amount, const Timing& seconds) {
  return {amount / seconds.median, amount / seconds.p90, amount / seconds.p10};
}

Bandwidth measure_bandwidth(int64_t bytes, int threads) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
  const auto array = [&] { return std::unique_ptr<float[]>(new float[static_cast<std::size_t>(count)]()); };
  const auto a = array(), b = array(), c = array();
  const auto share_of = [&](int thread) {
    constexpr int64_t kLine = 16;
    const auto border = [&](int64_t t) { return count / kLine * t / threads * kLine; };
    return std::pair(border(thread), border(thread + 1) - border(thread));
  };
  // What does not fit into the caches is written past them, as fast as the machine can.
  const bool streams = 2 * static_cast<std::size_t>(bytes) > internal::kStreamedBytes;
  const auto copy = [&](int thread, int64_t calls) {
    const auto [from, length] = share_of(thread);
    const std::size_t part = static_cast<std::size_t>(length) * sizeof(float);
    for (int64_t i = 0; i < calls; ++i) {
      if (streams) {
        internal::stream_copy(a.get() + from, b.get() + from, part);
      } else {
        std::memcpy(a.get() + from, b.get() + from, part);
      }
      asm volatile("" ::"r"(a.get()) : "memory");  // it counts as read
    }
  };
  const auto add = [&](int thread, int64_t calls) {
    const auto [from, length] = share_of(thread);
    for (int64_t i = 0; i < calls; ++i) {
      if (streams) {
        triad_past_caches(a.get() + from, b.get() + from, c.get() + from, 3, length);
      } else {
        triad(a.get() + from, b.get() + from, c.get() + from, 3, length);
      }
      asm volatile("" ::"r"(a.get()) : "memory");
    }
  };
  const auto size = static_cast<double>(bytes);
  return {bytes, threads, rate_of(2 * size, measure_on_threads(threads, copy, kShort)),
          rate_of(3 * size, measure_on_threads(threads, add, kShort))};
}

Timing measure_ping_pong() {
  struct alignas(128) Word {
    std::atomic<int64_t> value{0};
  };
  Word ping, pong;
  const auto work = [&](int thread, int64_t calls) {
    Word& mine = thread == 0 ? ping : pong;
    const Word& other = thread == 0 ? pong : ping;
    for (int64_t i = 0; i < calls; ++i) {
      const int64_t next = mine.value.load(std::memory_order_relaxed) + 1;
      if (thread == 0) mine.value.store(next, std::memory_order_release);
      while (other.value.load(std::memory_order_acquire) < next) internal::pause_cpu();
      if (thread == 1) mine.value.store(next, std::memory_order_release);
    }
  };
  return measure_on_threads(2, work, kShort);
}

Timing measure_flops(int threads) {
  constexpr int64_t kSide = 1024;
  const auto matrices = [&](double value) {
    std::vector<at::Tensor> made;
    for (int t = 0; t < threads; ++t) made.push_back(at::full({kSide, kSide}, value, at::kFloat));
    return made;
  };
  std::vector<at::Tensor> results = matrices(0);
  const std::vector<at::Tensor> left = matrices(0.5), right = matrices(2);
  const auto work = [&](int thread, int64_t calls) {
    const auto t = static_cast<std::size_t>(thread);
    for (int64_t i = 0; i < calls; ++i) at::mm_out(results[t], left[t], right[t]);
  };
  const double flops = 2.0 * kSide * kSide * kSide * threads;
  return rate_of(flops, measure_on_threads(threads, work, kShort));
}

/// A rate of so many to the ninth.
std::string giga(const Timing& rate) {
  return fmt::format("{:.1f} ({:.1f} to {:.1f})", rate.median / 1e9, rate.p10 / 1e9, rate.p90 / 1e9);
}

}  // namespace

const Bandwidth& Calibration::of_working_set(int64_t bytes, int arrays) const {
  // What exceeds the largest cache comes from memory, however little it exceeds it by: streams leave nothing behind.
  const double wanted = bytes > largest_cache() ? std::numeric_limits<float>::max()
                                                : static_cast<double>(std::max<int64_t>(bytes, 1)) / arrays;
  const auto distance = [&](const Bandwidth& one) {
    return one.threads == threads ? std::abs(std::log(static_cast<double>(one.bytes) / wanted)) : 1e9;
  };
  return *std::min_element(bandwidth.begin(), bandwidth.end(),
                           [&](const Bandwidth& a, const Bandwidth& b) { return distance(a) < distance(b); });
}

Calibration calibrate(int lanes) {
  Calibration calibration;
  calibration.processor = processor_name();
  calibration.cores = static_cast<int>(internal::cores_of_this_process().size());
  calibration.threads = std::clamp(lanes, 1, std::max(calibration.cores, 1));
  std::vector<int> teams{1};
  if (calibration.threads > 1) teams.push_back(calibration.threads);
  for (const int64_t bytes : {256 * kKiB, 8 * kMiB, 256 * kMiB}) {
    for (const int threads : teams) calibration.bandwidth.push_back(measure_bandwidth(bytes, threads));
  }
  if (calibration.cores > 1) calibration.ping_pong = measure_ping_pong();
  calibration.flops_of_one = measure_flops(1);
  calibration.flops_of_all = calibration.threads > 1 ? measure_flops(calibration.threads) : calibration.flops_of_one;
  return calibration;
}

std::vector<std::pair<std::string, std::string>> table_of(const Calibration& calibration) {
  std::vector<std::pair<std::string, std::string>> rows{
      {"processor", fmt::format("{}, {} cores", calibration.processor, calibration.cores)},
      {"software", internal::platform_description()},
  };
  for (const Bandwidth& one : calibration.bandwidth) {
    const std::string what =
        fmt::format("{}, {} thread{}", size_text(one.bytes), one.threads, one.threads > 1 ? "s" : "");
    rows.emplace_back("copy, triad of " + what, fmt::format("{}, {} GB/s", giga(one.copy), giga(one.triad)));
  }
  if (calibration.ping_pong.median > 0) {
    rows.emplace_back("ping-pong of two threads", fmt::format("{:.0f} ns", 1e9 * calibration.ping_pong.median));
  }
  rows.emplace_back("matrix product, 1 thread", giga(calibration.flops_of_one) + " GFLOP/s");
  if (calibration.threads > 1) {
    rows.emplace_back(fmt::format("matrix products, {} threads", calibration.threads),
                      giga(calibration.flops_of_all) + " GFLOP/s");
  }
  return rows;
}

nlohmann::ordered_json json_of(const Calibration& calibration) {
  nlohmann::ordered_json bandwidth = nlohmann::ordered_json::array();
  for (const Bandwidth& one : calibration.bandwidth) {
    bandwidth.push_back({{"bytes", one.bytes},
                         {"threads", one.threads},
                         {"copy_gb_per_second", json_of(one.copy, 1e-9)},
                         {"triad_gb_per_second", json_of(one.triad, 1e-9)}});
  }
  return {{"threads", calibration.threads},
          {"bandwidth", bandwidth},
          {"ping_pong_ns", json_of(calibration.ping_pong, 1e9)},
          {"gflops_of_one", json_of(calibration.flops_of_one, 1e-9)},
          {"gflops_of_all", json_of(calibration.flops_of_all, 1e-9)}};
}

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  }
  return "unknown";
}

int64_t largest_cache() {
  int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream in(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    int64_t size = 0;
    char unit = 0;
    if (in >> size >> unit) largest = std::max(largest, size * (unit == 'M' ? kMiB : unit == 'K' ? kKiB : 1));
  }
  return largest > 0 ? largest : 32 * kMiB;
}

int64_t physical_memory() { return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE); }

}  // namespace lockstep::tools
