#include "lockstep/data/stages/stage_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/data/deal/batch_rows.h"

namespace lockstep::internal::inline data {

struct StageTimes::Thread {
  StageTimes* times = nullptr;
  Thread* outer = nullptr;  // a pipeline that was being read on this thread, when this one was asked for a step
  // Only this thread changes them; `since` while it has the mutex.
  std::atomic<int> stage{0};
  std::atomic<int64_t> since{0};

  int move_to(int next);
};

namespace {

constexpr int kWaiting = -1;

thread_local StageTimes::Thread* this_thread = nullptr;

/// In nanoseconds. It stands still between ticks, and costs a fifth of the exact one.
int64_t ticking_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

/// Returns the stage before it.
int StageTimes::Thread::move_to(int next) {
  const int64_t now = ticking_now();
  if (now != since.load(std::memory_order_relaxed)) times->add(*this, now);
  const int before = stage.load(std::memory_order_relaxed);
  stage.store(next, std::memory_order_relaxed);
  return before;
}

void StageTimes::restart() {
  const std::lock_guard<std::mutex> lock(mutex_);
  begin_ = ticking_now();
  for (Stage& stage : stages_) stage.time = 0;
}

void StageTimes::add_to(int64_t& time, const Thread& thread, int64_t begin, int64_t now) {
  time += std::max<int64_t>(now - std::max(begin, thread.since.load(std::memory_order_relaxed)), 0);
}

void StageTimes::add(Thread& thread, int64_t now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int stage = thread.stage.load(std::memory_order_relaxed);
  if (stage != kWaiting) add_to(stages_[static_cast<std::size_t>(stage)].time, thread, begin_, now);
  thread.since.store(now, std::memory_order_relaxed);
}

void StageTimes::join(Thread& thread) {
  const std::lock_guard<std::mutex> lock(mutex_);
  thread.since.store(ticking_now(), std::memory_order_relaxed);
  threads_.push_back(&thread);
}

void StageTimes::leave(Thread& thread) {
  add(thread, ticking_now());
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase(threads_, &thread);
}

std::string StageTimes::slowest() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t now = ticking_now();
  std::vector<int64_t> times;
  for (const Stage& stage : stages_) times.push_back(stage.time);
  for (const Thread* const thread : threads_) {  // what a thread is in now has not been added yet
    const int stage = thread->stage.load(std::memory_order_relaxed);
    if (stage != kWaiting) add_to(times[static_cast<std::size_t>(stage)], *thread, begin_, now);
  }
  struct Kind {
    int64_t time = 0;
    int64_t count = 0;
    std::size_t slowest = 0;
  };
  std::map<uint64_t, Kind> kinds;
  int64_t all = times.front();
  for (std::size_t i = 1; i < times.size(); ++i) {
    if (times[i] == 0) continue;
    all += times[i];
    Kind& kind = kinds[stages_[i].kind];
    kind.time += times[i];
    ++kind.count;
    if (kind.slowest == 0 || times[i] > times[kind.slowest]) kind.slowest = i;
  }
  if (kinds.empty()) return {};
  const Kind& most = std::max_element(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
                       return a.second.time < b.second.time;
                     })->second;
  // One of several streams is named alone where it is the slow one.
  const bool is_one = 2 * times[most.slowest] > most.time;
  const auto seconds = [](int64_t time) { return static_cast<double>(time) * 1e-9; };
  return fmt::format("{}{}: {:.1f} s of {:.1f} s of reading", stages_[most.slowest].name,
                     is_one ? "" : fmt::format(" and {} like it", counted(most.count - 1, "stage")),
                     seconds(is_one ? times[most.slowest] : most.time), seconds(all));
}

int StageTimes::stage_of(const lockstep::data::Source& source, int around) {
  const std::pair<const lockstep::data::Source*, const std::type_info*> key{&source, &typeid(source)};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // A source that takes the place of another of its type in memory is the same stage in another round of repeat().
    if (const auto known = by_source_.find(key); known != by_source_.end()) return known->second;
  }
  const int stage = stage_named(source.describe(), *key.second, around);
  const std::lock_guard<std::mutex> lock(mutex_);
  return by_source_[key] = stage;
}

int StageTimes::stage_named(std::string name, const std::type_info& type, int around) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [known, is_new] = by_name_.try_emplace(std::move(name), static_cast<int>(stages_.size()));
  if (is_new) {
    const uint64_t outer = stages_[static_cast<std::size_t>(std::max(around, 0))].kind;
    stages_.push_back({known->first, mixed(outer, type.hash_code()), 0});
  }
  return known->second;
}

StageReading::Place StageReading::here() {
  if (!this_thread) return {};
  return {this_thread->times, this_thread->stage.load(std::memory_order_relaxed)};
}

StageReading::StageReading(const Place& place) {
  if (!place.times) return;
  thread_ = std::make_unique<StageTimes::Thread>();
  thread_->times = place.times;
  thread_->stage = place.stage;
  thread_->outer = std::exchange(this_thread, thread_.get());
  place.times->join(*thread_);
}

StageReading::~StageReading() {
  if (!thread_) return;
  thread_->times->leave(*thread_);
  this_thread = thread_->outer;
}

StageScope::StageScope(const lockstep::data::Source& source) : thread_(this_thread) {
  if (!thread_) return;
  before_ = thread_->move_to(thread_->times->stage_of(source, thread_->stage.load(std::memory_order_relaxed)));
}

StageScope::StageScope(const std::string& name) : thread_(this_thread) {
  if (!thread_) return;
  const int around = thread_->stage.load(std::memory_order_relaxed);
  before_ = thread_->move_to(thread_->times->stage_named(name, typeid(StageScope), around));
}

StageScope::StageScope() : thread_(this_thread) {
  if (thread_) before_ = thread_->move_to(kWaiting);
}

StageScope::~StageScope() {
  if (thread_) thread_->move_to(before_);
}

/// Counts the time of another reader.
class StageReader final : public lockstep::data::StreamReader {
 public:
  explicit StageReader(std::shared_ptr<const lockstep::data::StreamSource> source) : source_(std::move(source)) {}

  void open(const lockstep::data::StreamPass& pass, const lockstep::data::StreamPosition& position) {
    in_stage([&] {
      reader_ = source_->open(pass, position);
      return true;
    });
  }
  bool next(Batch& element) override {
    return in_stage([&] { return reader_->next(element); });
  }
  lockstep::data::StreamPosition position() const override { return reader_->position(); }

 private:
  template <class Work>
  bool in_stage(const Work& work) {
    StageTimes::Thread* const thread = this_thread;
    if (!thread) return work();
    if (times_ != thread->times) {
      times_ = thread->times;
      const lockstep::data::StreamSource& source = *source_;
      stage_ = times_->stage_named(source.describe(), typeid(source), thread->stage.load(std::memory_order_relaxed));
    }
    struct Back {
      StageTimes::Thread* const thread;
      const int before;
      ~Back() { thread->move_to(before); }
    } const back{thread, thread->move_to(stage_)};
    return work();
  }

  const std::shared_ptr<const lockstep::data::StreamSource> source_;
  std::unique_ptr<lockstep::data::StreamReader> reader_;
  StageTimes* times_ = nullptr;  // those that know it by the number `stage_`
  int stage_ = 0;
};

std::unique_ptr<lockstep::data::StreamReader> open_stage(
    const std::shared_ptr<const lockstep::data::StreamSource>& source, const lockstep::data::StreamPass& pass,
    const lockstep::data::StreamPosition& position) {
  auto reader = std::make_unique<StageReader>(source);
  reader->open(pass, position);
  return reader;
}

}  // namespace lockstep::internal::data
