// Replicas that were given the same samples: probably an input that is not sharded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/findings.h"

namespace lockstep::internal::inline data {

/// What one replica was given.
struct PartDigest {
  uint64_t digest = 0;  // 0: it says nothing
  int64_t rows = 0;
};

/// What workers tell each other of batches without a Batch::origin. It is short enough to need no memory.
inline constexpr const char* kOwnBatches = "its own batches";

/// Reports the first two replicas that were given the same, as a finding about `subject` at `step`. `parts` are those
/// of all replicas, in their order.
void report_repeated_input(Findings& findings, const std::string& subject, int64_t step,
                           const std::vector<PartDigest>& parts);

/// As bytes for another worker, and back. A PeerError for bytes of `worker` that bytes_of() does not make.
std::string bytes_of(const std::vector<PartDigest>& parts);
std::vector<PartDigest> parts_of(std::string_view bytes, int64_t worker);

}  // namespace lockstep::internal::data
