// What is known of each worker of a job when one of them gives up waiting for the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

struct SeenWorker {
  enum class State : uint8_t { kUnknown, kHere, kMissing };
  State state = State::kUnknown;
  std::string what = {};  // was seen of one that is missing: "10.0.3.9:2222, Connection refused"; may be empty

  bool operator==(const SeenWorker&) const = default;
};

/// LS-CLUSTER-JOIN, with all that the process that throws it knows.
class WorkersMissing final : public ClusterError {
 public:
  WorkersMissing(std::string what_happened, std::vector<SeenWorker> all);

  const std::string& fact() const noexcept { return fact_; }
  const std::vector<SeenWorker>& seen() const noexcept { return seen_; }  // by worker

 private:
  std::string fact_;
  std::vector<SeenWorker> seen_;
};

/// What a worker knows where worker 0 is missing: nothing of the others. `seen` is what was seen of worker 0.
WorkersMissing chief_missing(std::string what_happened, int64_t worker, int64_t num_workers, std::string seen = {});

/// What worker 0 tells the others when it gives up: the fact, and a line for each worker that is missing; all others
/// have come. And back, from any text.
std::string encode(const WorkersMissing& missing);
WorkersMissing decode_missing(const std::string& text, int64_t num_workers);

}  // namespace lockstep::internal::comm
