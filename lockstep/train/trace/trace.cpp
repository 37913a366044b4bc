// The order of events: a trace compares the workers' clocks and begins to record. write() stops the recording, compares
// the clocks again, makes this worker's events of it, by the chief's clock, and brings all workers' events to the
// chief, which writes the file.
#include "lockstep/train/trace/trace.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/folder/replace_file.h"
#include "lockstep/comm/join/this_host.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/trace/trace_events.h"

namespace lockstep {

namespace {

constexpr int kClockCalls = 16;  // one of them is hardly held up by anything

/// Each worker's bytes, on every worker, in worker order. A call of all workers.
std::vector<std::string> gather_bytes(const Strategy& strategy, const std::string& mine) {
  // The worker's first replica brings them, and the size; the other replicas bring nothing.
  bool is_first = true;
  const auto brought = strategy.per_replica([&](ReplicaId) { return std::exchange(is_first, false); });
  std::vector<at::Tensor> sizes;
  std::vector<at::Tensor> bytes;
  for (const bool brings : brought) {
    const auto size = static_cast<int64_t>(mine.size());
    sizes.push_back(brings ? at::full({1}, size, at::kLong) : at::empty({0}, at::kLong));
    at::Tensor part = at::empty({brings ? size : 0}, at::kByte);
    if (brings && size > 0) std::memcpy(internal::host_bytes_to_write(part).data(), mine.data(), mine.size());
    bytes.push_back(std::move(part));
  }
  const ReplicaId first = brought.first_replica();
  const at::Tensor all_sizes = strategy.gather(PerReplica<at::Tensor>(std::move(sizes), first));
  const at::Tensor all_bytes = strategy.gather(PerReplica<at::Tensor>(std::move(bytes), first)).contiguous();
  std::vector<std::string> all;
  const char* from = internal::host_text(all_bytes).data();
  for (int64_t w = 0; w < all_sizes.size(0); ++w) {
    const auto size = all_sizes[w].item<int64_t>();
    all.emplace_back(from, static_cast<std::size_t>(size));
    from += size;
  }
  return all;
}

struct ClocksOfWorkers {
  internal::ClockOffset mine;  // to the chief's
  int64_t chiefs_time = 0;     // when the last call began
};

/// A call of all workers.
ClocksOfWorkers compare_clocks(const Strategy& strategy) {
  using Times = std::vector<internal::CallTimes>;
  if (strategy.num_workers() == 1) return {{}, internal::trace_now()};
  Times mine;
  for (int i = 0; i < kClockCalls; ++i) {
    const int64_t begin = internal::trace_now();
    gather_bytes(strategy, {});
    mine.push_back({begin, internal::trace_now()});
  }
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(mine.front()));
  const std::string chiefs = gather_bytes(strategy, bytes).front();
  Times theirs(chiefs.size() / sizeof(mine.front()));
  std::memcpy(theirs.data(), chiefs.data(), chiefs.size());
  return {internal::clock_offset(mine, theirs), theirs.back().begin};
}

TraceOptions checked(TraceOptions options) {
  if (options.file.empty()) {
    throw UsageError("LS-TRACE", "a trace was made without a file",
                     "name it: Trace trace(strategy, {.file = \"trace.json\"})");
  }
  if (options.most == 0) throw UsageError("LS-OPTION", ".most of a trace is 0", "leave it out: 1,000,000 slices");
  return options;
}

}  // namespace

struct Trace::Recorded {
  explicit Recorded(const Strategy& strategy, std::size_t most)
      : first(compare_clocks(strategy)), begin(internal::trace_now()), recording(std::in_place, most) {}
  const ClocksOfWorkers first;
  const int64_t begin;
  std::optional<internal::TraceRecording> recording;  // until write()
};

Trace::Trace(Strategy& strategy, TraceOptions options)
    : strategy_(strategy),
      options_(checked(std::move(options))),
      recorded_(std::make_unique<Recorded>(strategy, options_.most)) {}

Trace::~Trace() = default;

void Trace::write() {
  if (!recorded_->recording) {
    throw UsageError("LS-TRACE", fmt::format("the trace for '{}' was written already", options_.file),
                     "make another Trace for other steps");
  }
  internal::WorkerTrace mine;
  mine.slices = recorded_->recording->stop();
  if (const std::size_t left_out = recorded_->recording->left_out(); left_out > 0) {
    internal::log(
        LogLevel::kWarning,
        fmt::format("the trace for '{}' is full: the last {} slices of worker {} are left out; trace fewer steps, "
                    "or raise .most",
                    options_.file, left_out, strategy_.worker_index()));
  }
  recorded_->recording.reset();
  const ClocksOfWorkers last = compare_clocks(strategy_);
  mine.worker = strategy_.worker_index();
  mine.host = internal::host_name();
  mine.lanes = strategy_.devices();
  mine.zero = recorded_->first.chiefs_time;
  mine.first_time = recorded_->begin;
  mine.last_time = internal::trace_now();
  mine.first = recorded_->first.mine;
  mine.last = last.mine;
  const std::vector<std::string> all = gather_bytes(strategy_, internal::trace_events(mine));
  const std::vector<std::string> off = gather_bytes(
      strategy_, fmt::format("{}", (std::max(mine.first.uncertainty, mine.last.uncertainty) + 999) / 1000));
  strategy_.on_chief([&] {
    std::vector<std::string> notes{"program",        "lockstep", "strategy",
                                   strategy_.name(), "clock",    "monotonic, of worker 0"};
    for (std::size_t w = 1; w < off.size(); ++w) {
      notes.push_back(fmt::format("uncertainty of worker {} in microseconds", w));
      notes.push_back(off[w]);
    }
    internal::replace_with_text(options_.file, internal::trace_document(all, notes));
  });
}

}  // namespace lockstep
