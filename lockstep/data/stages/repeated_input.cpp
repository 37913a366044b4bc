#include "lockstep/data/stages/repeated_input.h"

#include <fmt/format.h>

#include "lockstep/core/bytes.h"
#include "lockstep/core/counted.h"

namespace lockstep::internal::inline data {

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
  std::string bytes;
  ByteWriter(bytes).put_all(parts);
  return bytes;
}

std::vector<PartDigest> parts_of(std::string_view bytes, int64_t worker) {
  return MessageReader(bytes, worker, "digests of its batches").get_rest<PartDigest>();
}

}  // namespace lockstep::internal::data
