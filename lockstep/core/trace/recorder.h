// What threads did and when, while a trace is recorded: the library's side of lockstep::Trace (train/trace/trace.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::internal::inline core {

/// What a slice is, for whoever adds slices up.
enum class TraceKind : uint8_t {
  kStep,     // a whole run or evaluation
  kCompute,  // a replica's function
  kWait,     // nothing was done: others were not ready
  kMeeting,  // a stage of a meeting: sums, updates, exchanges
  kInput,    // samples were read
};
inline constexpr int kTraceKinds = 5;

/// Where a slice is drawn. Slices of a track nest.
using TraceTrack = int32_t;
/// The track of a lane of this process.
constexpr TraceTrack lane_track(int lane) { return lane + 1; }
/// The track of the i-th thread that reads ahead.
constexpr TraceTrack input_track(int64_t i) { return static_cast<TraceTrack>(10001 + i); }

/// What happened on a track from `begin` to `end`.
struct TraceSlice {
  const char* name = "";  // a literal
  int64_t begin = 0;      // nanoseconds of the monotonic clock, which is one for all processes of a host
  int64_t end = 0;
  TraceTrack track = 0;
  TraceKind kind = TraceKind::kCompute;
  int64_t number = -1;  // of the step, or of the replica in the whole run; -1: none
};

/// Nanoseconds of the monotonic clock.
int64_t trace_now();

/// Whether a trace is recorded now. Any thread; it costs a load.
inline std::atomic<bool> trace_is_on{false};
inline bool is_traced() { return trace_is_on.load(std::memory_order_relaxed); }

/// Adds a slice, where a trace is recorded. Any thread. It takes no lock and no memory.
void add_to_trace(const TraceSlice& slice) noexcept;

/// What is recorded in this process, from its construction to stop(). One lives at a time.
class TraceRecording {
 public:
  /// At most `most` slices are kept, the first ones. Throws a UsageError (LS-TRACE) where another one is recorded.
  explicit TraceRecording(std::size_t most);
  ~TraceRecording();
  TraceRecording(const TraceRecording&) = delete;
  TraceRecording& operator=(const TraceRecording&) = delete;

  /// Ends it, and gives what was recorded, in no order; nothing where it has ended. One thread.
  std::vector<TraceSlice> stop();
  /// How many slices came when it was full.
  std::size_t left_out() const { return left_out_; }

 private:
  std::vector<TraceSlice> slices_;
  std::size_t left_out_ = 0;
};

/// A slice from its construction to its end, where a trace is recorded meanwhile.
class TraceScope {
 public:
  TraceScope(const char* name, TraceKind kind, TraceTrack track, int64_t number = -1)
      : slice_{name, is_traced() ? trace_now() : 0, 0, track, kind, number} {}
  ~TraceScope() { end(); }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  /// The slice ends here.
  void end() {
    if (slice_.begin == 0) return;
    slice_.end = trace_now();
    add_to_trace(slice_);
    slice_.begin = 0;
  }

 private:
  TraceSlice slice_;
};

/// What a replica's function does on its lane: a slice for each part of it. Used on the replica's thread.
class ReplicaTrace {
 public:
  /// The function begins, as "forward".
  void begin(TraceTrack track, int64_t replica) {
    if (!is_traced()) return;
    current_ = {"forward", trace_now(), 0, track, TraceKind::kCompute, replica};
  }
  /// The part that runs ends, and another begins under this name, a literal.
  void go_on_as(const char* name) {
    if (current_.begin == 0) return;
    pause();
    current_.name = name;
    current_.begin = trace_now();
  }
  /// The replica waits at a meeting.
  void pause() {
    if (current_.begin == 0) return;
    current_.end = trace_now();
    add_to_trace(current_);
  }
  /// The replica has its lane again after a meeting, by its what().
  void resume(std::string_view meeting) {
    if (current_.begin == 0) return;
    if (meeting == "optimizer.step") current_.name = "after the update";
    current_.begin = trace_now();
  }
  /// The function has ended.
  void end() {
    pause();
    current_.begin = 0;
  }

 private:
  TraceSlice current_;  // begin is 0 where the run is not traced
};

/// That of the replica whose function runs on this thread.
inline thread_local ReplicaTrace replica_trace;

}  // namespace lockstep::internal::core
