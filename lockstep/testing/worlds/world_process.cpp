#include "lockstep/testing/worlds/world_process.h"

#include <thread>
#include <utility>

#include "lockstep/testing/worlds/world_job.h"

namespace lockstep::internal::inline testing {

std::shared_ptr<World> OwnProcess::begin_job(std::chrono::milliseconds patience) {
  if (has_job_) throw NeedsTwoJobs();
  const int64_t job = jobs_++;
  if (job < setup_.first_job) return nullptr;
  meet();  // their last job is over: it has failed for all that look now, or for none
  if (number(kFailedRun) != 0) throw NeedsNewProcesses(job);
  meet();
  has_job_ = true;
  return setup_.make(patience);
}

void OwnProcess::meet() {
  const std::size_t met = take_number();
  ++number(met);
  wait(met, static_cast<uint64_t>(setup_.processes));
}

std::size_t OwnProcess::take_number() {
  expect(taken_ < setup_.numbers.size(), "the check has taken all numbers that the processes share");
  return taken_++;
}

void OwnProcess::wait(std::size_t which, uint64_t least) const {
  while (number(which) < least) {
    expect(number(kFailedCheck) == 0, "the check has failed on another worker");
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // nothing of std:: wakes up another process
  }
}

Latch::Latch(const Trial& trial, int64_t count) : process_(trial.process), count_(static_cast<uint64_t>(count)) {
  if (process_) {
    number_ = process_->take_number();
  } else {
    threads_.emplace(count);
  }
}

void Latch::count_down() {
  if (process_) {
    ++process_->number(number_);
  } else {
    threads_->count_down();
  }
}

void Latch::wait() {
  if (process_) {
    process_->wait(number_, count_);
  } else {
    threads_->wait();
  }
}

Earliest::Earliest(const Trial& trial) : process_(trial.process) {
  if (process_) number_ = process_->take_number();
}

void Earliest::add(Time given) {
  // All processes of a host have one steady clock.
  const auto mine = static_cast<uint64_t>(given.time_since_epoch().count());
  uint64_t known = time();
  while ((known == 0 || mine < known) && !time().compare_exchange_weak(known, mine)) {
  }
}

Earliest::Time Earliest::get() const { return Time(Time::duration(static_cast<Time::duration::rep>(time().load()))); }

}  // namespace lockstep::internal::testing
