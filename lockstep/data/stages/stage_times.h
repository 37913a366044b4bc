// Where the threads that read a pipeline spend their time, stage by stage: the warning of a stall names the slowest.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/data/sources/stream_source.h"

namespace lockstep::internal::inline data {

/// The times of one pipeline. A thread that goes from one stage to another reads a clock that counts in ticks of a few
/// milliseconds, and comes here only where a tick has passed. So a stage costs some nanoseconds, and one that is a
/// hundredth of the whole is found after some hundred ticks. Any thread.
class StageTimes {
 public:
  StageTimes() = default;
  StageTimes(const StageTimes&) = delete;
  StageTimes& operator=(const StageTimes&) = delete;

  /// Counts from now on.
  void restart();
  /// The stage in which threads have spent the most time, without the stages before it: "decode of 7 samples in
  /// tensors: 12.3 s of 13.0 s of reading". Threads count side by side. Empty where no stage has taken a tick.
  std::string slowest() const;

  struct Thread;  // one that reads

 private:
  friend class StageReading;
  friend class StageScope;
  friend class StageReader;

  struct Stage {
    std::string name;
    uint64_t kind = 0;  // its type and those of the stages around it: streams that are read in turn are of one kind
    int64_t time = 0;   // in nanoseconds
  };
  int stage_of(const lockstep::data::Source& source, int around);
  int stage_named(std::string name, const std::type_info& type, int around);
  void join(Thread& thread);
  void leave(Thread& thread);
  void add(Thread& thread, int64_t now);
  static void add_to(int64_t& time, const Thread& thread, int64_t begin, int64_t now);

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  int64_t begin_ = 0;
  std::deque<Stage> stages_{Stage{}};  // the first one is what belongs to no stage
  std::unordered_map<std::string, int> by_name_;
  std::map<std::pair<const lockstep::data::Source*, const std::type_info*>, int> by_source_;
  std::vector<Thread*> threads_;
};

/// While it lives, this thread reads for a pipeline.
class StageReading {
 public:
  /// A pipeline and a stage of it; or nothing.
  struct Place {
    StageTimes* times = nullptr;
    int stage = 0;
  };
  /// Where this thread is.
  static Place here();

  /// Without a place it does nothing.
  explicit StageReading(const Place& place);
  ~StageReading();
  StageReading(const StageReading&) = delete;
  StageReading& operator=(const StageReading&) = delete;

 private:
  std::unique_ptr<StageTimes::Thread> thread_;
};

/// While it lives, this thread is in a stage of the pipeline that it reads for, if it does.
class StageScope {
 public:
  explicit StageScope(const lockstep::data::Source& source);
  /// One that is no source, by what the warning calls it.
  explicit StageScope(const std::string& name);
  ~StageScope();
  StageScope(const StageScope&) = delete;
  StageScope& operator=(const StageScope&) = delete;
  /// It waits for other threads, which count for themselves.
  static StageScope waiting() { return StageScope(); }

 private:
  StageScope();
  StageTimes::Thread* const thread_;
  int before_ = 0;
};

/// `source->open(pass, position)`, whose reader counts as a stage.
std::unique_ptr<lockstep::data::StreamReader> open_stage(
    const std::shared_ptr<const lockstep::data::StreamSource>& source, const lockstep::data::StreamPass& pass,
    const lockstep::data::StreamPosition& position);

}  // namespace lockstep::internal::data
