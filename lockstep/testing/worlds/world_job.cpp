#include "lockstep/testing/worlds/world_job.h"

#include <cctype>
#include <utility>

namespace lockstep::internal::inline testing {

using std::chrono::steady_clock;

void Activity::note(const std::string& who, const char* what, int64_t call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  latest_ = steady_clock::now();
  all_.insert_or_assign(who, State{what, call, latest_});
}

void Activity::note_thrown(const std::string& who, const std::exception_ptr& found) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (thrown_.empty()) thrown_ = fmt::format("; before that {} threw '{}'", who, message_of(found));
}

Activity::Time Activity::latest() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return latest_;
}

std::string Activity::text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto now = steady_clock::now();
  std::vector<std::string> parts;
  for (const auto& [who, state] : all_) {
    const double seconds = std::chrono::duration<double>(now - state.since).count();
    parts.push_back(fmt::format("{} {} for {:.1f} s after {} calls", who, state.what, seconds, state.call));
  }
  return fmt::format("{}{}", fmt::join(parts, "; "), thrown_);
}

uint64_t Random::next() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

void linger(Random& random, std::chrono::microseconds longest) {
  const auto end = steady_clock::now() + std::chrono::microseconds(random.below(longest.count() + 1));
  while (steady_clock::now() < end) {
    if (random.below(4) == 0) std::this_thread::yield();
  }
}

namespace {

/// Whether `text` names the worker: "worker 1" does not stand in "worker 12".
bool names(std::string_view text, int64_t worker) {
  const std::string name = fmt::format("worker {}", worker);
  for (auto at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const auto end = at + name.size();
    if (end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0) return true;
  }
  return false;
}

}  // namespace

Worker::Worker(std::shared_ptr<World> world, int64_t index, std::string who, const Trial& trial)
    : world_(std::move(world)),
      index_(index),
      workers_(trial.workers),
      who_(std::move(who)),
      activity_(trial.activity),
      process_(trial.process) {}

std::vector<std::string> Worker::agree(const std::string& mine) {
  note("is in agree()");
  ++calls_;
  std::vector<std::string> all = world_->agree(mine);
  note("is between calls");
  return all;
}

void Worker::exchange(To to, From from) {
  note("is in exchange()");
  ++calls_;
  world_->exchange(to, from);
  note("is between calls");
}

void Worker::abort(const std::string& reason) noexcept {
  note("is in abort()");
  note_failed_run();
  world_->abort(reason);
  note("is between calls");
}

void Worker::leave() {
  note("destroys its world");
  world_.reset();
  note("has left");
}

void Worker::begin(Latch& all) {
  agree("the first call");
  arrive_and_wait(all);
}

void Worker::arrive_and_wait(Latch& latch) {
  latch.count_down();
  wait(latch);
}

void Worker::wait(Latch& latch) {
  note("waits for the check's other threads");
  latch.wait();
  note("is between calls");
}

PeerError Worker::error_of(const char* what, FunctionRef<void()> call) const {
  const std::exception_ptr found = thrown_by(call);
  note_failed_run();
  const std::string whose = fmt::format("{} of {}", what, who_);
  note("is between calls");
  expect_error<PeerError>(whose, "a PeerError", found, {});
  try {
    std::rethrow_exception(found);
  } catch (const PeerError& error) {
    expect(!error.code().empty(), fmt::format("{} threw '{}', which has no code", whose, error.what()));
    bool named = false;
    for (int64_t w = 0; w < workers_; ++w) named = named || names(error.what(), w);
    expect(named, fmt::format("{} threw '{}', which names no worker", whose, error.what()));
    return error;
  }
}

void Worker::expect_names(const PeerError& error, int64_t culprit, std::string_view reason) const {
  expect(names(error.what(), culprit),
         fmt::format("{} got '{}', which does not name worker {}", who_, error.what(), culprit));
  expect(std::string_view(error.what()).find(reason) != std::string_view::npos,
         fmt::format("{} got '{}', which does not have the reason '{}'", who_, error.what(), reason));
}

void Worker::expect_over(const PeerError& error) {
  for (int again = 0; again < 2; ++again) {
    const PeerError in_agree = error_of("a later agree()", [&] { agree("later"); });
    Messages messages(*this, {.size = [](int64_t, int64_t) { return std::size_t{5}; }}, 0);
    const PeerError in_exchange = error_of("a later exchange()", [&] { exchange(messages.to(), messages.from()); });
    expect_equal("what a later agree() throws", std::string(in_agree.what()), std::string(error.what()));
    expect_equal("what a later exchange() throws", std::string(in_exchange.what()), std::string(error.what()));
  }
}

Job::Job(const Trial& trial, std::optional<std::chrono::milliseconds> patience, const char* name)
    : activity_(trial.activity), process_(trial.process) {
  if (process_) {
    activity_->note("the check", "waits for the other processes", 0);
    const auto world = process_->begin_job(patience.value_or(trial.conformance->patience));
    activity_->note("the check", "waits for its worker", 0);
    is_skipped_ = !world;
    for (int64_t w = 0; w < trial.workers; ++w) {
      workers_.push_back(std::make_unique<Worker>(w == process_->index() ? world : nullptr, w,
                                                  fmt::format("worker {}{}", w, name), trial));
    }
    return;
  }
  const auto& conformance = *trial.conformance;
  activity_->note("the check", "makes the worlds of a job", 0);
  auto worlds = conformance.make(trial.workers, patience.value_or(conformance.patience));
  activity_->note("the check", "waits for its workers", 0);
  expect_equal("the number of worlds that .make gave", static_cast<int64_t>(worlds.size()), trial.workers);
  for (auto& world : worlds) {
    expect(world != nullptr, "a world that .make gave is null");
    const auto index = static_cast<int64_t>(workers_.size());
    workers_.push_back(
        std::make_unique<Worker>(std::move(world), index, fmt::format("worker {}{}", index, name), trial));
  }
}

Job::~Job() {
  join();
  activity_->note("the check", "destroys the worlds that are left", 0);
  workers_.clear();
  if (process_ && !is_skipped_) process_->end_job();
  activity_->note("the check", "goes on", 0);
}

void Job::start(std::function<void(Worker&)> body) {
  for (auto& worker : workers_) {
    if (process_ && !worker->has_world()) continue;
    threads_.emplace_back([this, body, &self = *worker] {
      try {
        self.note("begins");
        body(self);
        self.note("has ended");
      } catch (...) {
        const std::exception_ptr found = std::current_exception();
        activity_->note_thrown(fmt::format("worker {}", self.index()), found);
        {
          const std::lock_guard<std::mutex> lock(mutex_);
          if (!thrown_) thrown_ = found;
        }
        if (process_) process_->note_failed_check();
        if (self.has_world()) self.abort("a check has failed on this worker");
        self.note("has failed");
      }
    });
  }
}

void Job::finish() {
  join();
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  if (process_ && !is_skipped_) process_->meet();
}

void Job::leave(int64_t index) {
  workers_[static_cast<std::size_t>(index)]->leave();
  if (process_ && !is_skipped_) process_->meet();
}

void Job::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace lockstep::internal::testing
