// A mutex and what threads wait for with it, on the heap.
#pragma once

#include <condition_variable>
#include <mutex>

namespace lockstep::internal::inline data {

/// In a forked child its owner lets it leak, together with the threads: to destroy a condition is to wait for those who
/// wait for it, and they exist in the parent only.
struct MutexAndCondition {
  std::mutex mutex;
  std::condition_variable changed;
};

}  // namespace lockstep::internal::data
