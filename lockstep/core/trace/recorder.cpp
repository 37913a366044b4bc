// The order of events: a recording makes room once and switches tracing on. A thread that adds a slice says that it is
// here, takes a place of its own by counting, writes the slice, and says that it has gone. A recording that ends
// switches tracing off, waits until no thread is here, and reads what was written.
#include "lockstep/core/trace/recorder.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline core {

namespace {

std::atomic<int64_t> threads_here{0};
std::atomic<std::vector<TraceSlice>*> room{nullptr};  // of the recording that lives; null: none does
std::atomic<std::size_t> next_place{0};

}  // namespace

int64_t trace_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void add_to_trace(const TraceSlice& slice) noexcept {
  threads_here.fetch_add(1);  // before `room` is read: whoever takes the room away then waits
  if (std::vector<TraceSlice>* const slices = room.load()) {
    const std::size_t at = next_place.fetch_add(1, std::memory_order_relaxed);
    if (at < slices->size()) (*slices)[at] = slice;
  }
  threads_here.fetch_sub(1, std::memory_order_release);
}

TraceRecording::TraceRecording(std::size_t most) : slices_(most) {
  std::vector<TraceSlice>* none = nullptr;
  if (!room.compare_exchange_strong(none, &slices_)) {
    throw UsageError("LS-TRACE", "a trace was begun while another one is recorded in this process",
                     "let the first one end: write its file, or destroy it");
  }
  trace_is_on.store(true, std::memory_order_relaxed);
}

TraceRecording::~TraceRecording() { stop(); }

std::vector<TraceSlice> TraceRecording::stop() {
  if (room.load() != &slices_) return {};
  trace_is_on.store(false, std::memory_order_relaxed);
  room.store(nullptr);
  while (threads_here.load(std::memory_order_acquire) != 0) std::this_thread::yield();  // for one copy of a slice
  const std::size_t came = next_place.exchange(0);
  left_out_ = came - std::min(came, slices_.size());
  slices_.resize(came - left_out_);
  return std::move(slices_);
}

}  // namespace lockstep::internal::core
