// `lockstep bench all-reduce`: sums over replicas. Buffers are hot, one for all calls, or cold: they rotate over more
// than the caches hold and were written since they were last read.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/lockstep.h"
#include "tools/bench/bench_report.h"
#include "tools/console.h"
#include "tools/whole_file.h"

namespace lockstep::tools {

namespace {

constexpr int64_t kFloat = sizeof(float);

std::vector<int64_t> sizes_of(const BenchAllReduceOptions& options) {
  std::vector<int64_t> sizes;
  for (const uint64_t size : options.sizes) sizes.push_back(static_cast<int64_t>(size));
  if (sizes.empty()) {
    for (int64_t size = 8; size <= int64_t{256} << 20; size *= size < 64 ? 8 : 4) sizes.push_back(size);
  }
  for (const int64_t size : sizes) {
    if (size % kFloat != 0) {
      throw UsageError("LS-FLAG", fmt::format("--sizes has {} bytes, no whole number of float32", size),
                       "give multiples of 4");
    }
  }
  return sizes;
}

/// The buffers of one replica, each of `size` bytes on pages of its own, or at least on cache lines.
struct Buffers {
  at::Tensor memory;
  std::vector<at::Tensor> views;
};

Buffers make_buffers(int64_t size, int64_t at_least_bytes, float value) {
  constexpr int64_t kPage = 4096;
  const int64_t stride = (size + kPage - 1) / kPage * kPage;
  const int64_t count = std::max<int64_t>(1, (at_least_bytes + stride - 1) / stride);
  Buffers buffers{at::full({count * stride / kFloat}, value), {}};
  for (int64_t i = 0; i < count; ++i)
    buffers.views.push_back(buffers.memory.narrow(0, i * stride / kFloat, size / kFloat));
  return buffers;
}

Timing measure_size(Strategy& strategy, int64_t size, int64_t buffers_bytes, const TimingOptions& options) {
  const int64_t each = buffers_bytes / strategy.num_replicas();
  const PerReplica<Buffers> buffers = strategy.per_replica(
      [&](ReplicaId replica) { return make_buffers(size, each, static_cast<float>(replica.value() + 1)); });
  // No match, no number.
  const auto replicas = static_cast<double>(strategy.num_replicas());
  const auto sums = strategy.run(buffers, [](ReplicaContext& ctx, const Buffers& mine) {
    const at::Tensor sum = ctx.all_reduce(Reduction::kSum, mine.views.back());
    return std::pair(sum.min().item<double>(), sum.max().item<double>());
  });
  for (const auto& [least, most] : sums) {
    if (least != replicas * (replicas + 1) / 2 || most != least) {
      throw InternalError("LS-INTERNAL", fmt::format("all_reduce of {} bytes gave {} to {}", size, least, most),
                          "please report it");
    }
  }
  TimingOptions timing = options;
  if (buffers_bytes > 0) {
    timing.before_block = [&] {
      strategy.run(buffers, [](ReplicaContext&, const Buffers& mine) { mine.memory.mul_(1); });
    };
  }
  return measure(
      [&](int64_t calls) {
        strategy.run(buffers, [&](ReplicaContext& ctx, const Buffers& mine) {
          std::size_t next = 0;
          for (int64_t i = 0; i < calls; ++i) {
            ctx.all_reduce(Reduction::kSum, mine.views[next]);
            if (++next == mine.views.size()) next = 0;
          }
        });
      },
      timing);
}

}  // namespace

int bench_all_reduce(const BenchAllReduceOptions& options) {
  const std::vector<int64_t> sizes = sizes_of(options);
  WholeFile json(options.json);
  const auto strategy = strategy_of(options);
  const int64_t replicas = strategy->num_replicas();
  const int64_t cold_bytes = 4 * largest_cache();
  for (const int64_t size : sizes) {
    check_fits(2.0 * static_cast<double>(replicas) * static_cast<double>(size) + static_cast<double>(cold_bytes),
               fmt::format("--sizes {} on {} replicas", size_text(size), replicas));
  }
  const std::optional<Calibration> limits = limits_of(options, *strategy);
  nlohmann::ordered_json report = report_of("all-reduce", *strategy, limits);

  const Timing empty = measure(
      [&](int64_t calls) {
        for (int64_t i = 0; i < calls; ++i) strategy->run([](ReplicaContext&) {});
      },
      timing_of(options));
  report["empty_run_us"] = json_of(empty, 1e6);
  std::vector<std::pair<std::string, std::string>> head{
      {"replicas", fmt::format("{} on [{}]", replicas, fmt::join(strategy->devices(), ", "))},
      {"an empty run", text_of(empty)},
  };
  if (limits && limits->ping_pong.median > 0) {
    const double trips = empty.median / limits->ping_pong.median;
    report["empty_run_ping_pongs"] = trips;
    head.back().second += fmt::format(", {:.1f} ping-pongs", trips);
  }
  print_table(head);
  std::vector<std::vector<std::string>> table{
      {"all-reduce", "hot", "GB/s", "of the copy", "cold", "GB/s", "of the copy"}};
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const int64_t size : sizes) {
    std::vector<std::string> line{size_text(size)};
    for (const bool hot : {true, false}) {
      const Timing timing = measure_size(*strategy, size, hot ? 0 : cold_bytes, timing_of(options));
      const double rate = static_cast<double>(size) / timing.median;
      nlohmann::ordered_json row{{"bytes", size},
                                 {"buffers", hot ? "hot" : "cold"},
                                 {"us", json_of(timing, 1e6)},
                                 {"gb_per_second", rate / 1e9}};
      line.push_back(text_of(timing));
      line.push_back(fmt::format("{:.3f}", rate / 1e9));
      line.emplace_back("-");
      if (limits) {
        // Each replica's tensor is read and its result written. Cold buffers come from memory, whatever their size.
        const int64_t moved = 2 * replicas * size;
        const double share = static_cast<double>(moved) / limits->copy_rate(hot ? moved : cold_bytes) / timing.median;
        row["share_of_copy_bandwidth"] = share;
        line.back() = percent(share);
      }
      rows.push_back(row);
    }
    table.push_back(line);
  }
  report["sizes"] = rows;
  print_columns(table);
  json.write(report.dump(2) + "\n");
  json.commit();
  return 0;
}

}  // namespace lockstep::tools
