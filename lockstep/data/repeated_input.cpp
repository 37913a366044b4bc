#include "lockstep/data/repeated_input.h"

#include <fmt/format.h>

#include <cstring>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

void report_repeated_input(Findings& findings, const std::string& subject, int64_t step,
                           const std::vector<PartDigest>& parts) {
  for (std::size_t a = 0; a < parts.size(); ++a) {
    for (std::size_t b = a + 1; b < parts.size(); ++b) {
      if (parts[a].digest == 0 || parts[a].digest != parts[b].digest) continue;
      return findings.add("LS-INPUT-NOT-SHARDED", subject, step, [&] {
        return fmt::format(
            "replicas {} and {} read the same {} at step {}: the input is not sharded; pass it to strategy.distribute",
            a, b, counted(parts[a].rows, "sample"), step);
      });
    }
  }
}

std::string bytes_of(const std::vector<PartDigest>& parts) {
  return {reinterpret_cast<const char*>(parts.data()), parts.size() * sizeof(PartDigest)};
}

std::vector<PartDigest> parts_of(const std::string& bytes) {
  if (bytes.size() % sizeof(PartDigest) != 0) {
    throw PeerError("LS-PEER-MESSAGE", "what another worker tells of its batches cannot be read",
                    "start all workers with the same build of Lockstep");
  }
  std::vector<PartDigest> parts(bytes.size() / sizeof(PartDigest));
  std::memcpy(parts.data(), bytes.data(), bytes.size());
  return parts;
}

}  // namespace lockstep::internal
