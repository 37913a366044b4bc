// Why a worker is not brought together with the others, and how long that takes at most.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep::internal::inline comm {

/// The numbers of Frame::Kind::kRefused.
enum Refusal : uint64_t {
  kDiffers = 1,      // the worker does not fit to worker 0
  kGivenUp = 2,      // workers are missing: a text of WorkersMissing
  kUnreachable = 3,  // two workers cannot be connected
  kTaken = 4,        // another process has joined as this worker
  kInRun = 5,        // worker 0 is in a run of the same job: another one may begin when it has ended
};

/// Throws the ClusterError that kDiffers, kUnreachable or kTaken means.
[[noreturn]] void throw_refused(uint64_t refusal, const std::string& text);

/// One connection is made in so long, or it counts as impossible.
constexpr std::chrono::seconds kLongestConnect{10};
/// All connections between workers that have all come are made in so long.
constexpr std::chrono::seconds kLongestConnectAll{60};
/// Whoever waits for what others know gives up so much later: worker 0 hears from the others whom they lack, and then
/// they hear from worker 0.
constexpr std::chrono::seconds kGrace{2};

}  // namespace lockstep::internal::comm
