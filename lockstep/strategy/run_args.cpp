#include "lockstep/strategy/run_args.h"

#include <fmt/format.h>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/handed_out.h"
#include "lockstep/data/stages/repeated_input.h"

namespace lockstep::internal::inline strategy {

void check_argument_size(const char* call, std::size_t size, int64_t num_local_replicas) {
  const auto given = static_cast<int64_t>(size);
  if (given == num_local_replicas) return;
  throw UsageError("LS-PER-REPLICA-SIZE",
                   fmt::format("{}() was given a PerReplica of {} for {}", call, counted(given, "value"),
                               counted(num_local_replicas, "replica")),
                   "pass what per_replica(), a data set or an earlier run() of this strategy made");
}

void check_batches(const char* call, const PerReplica<Batch>& batches) {
  constexpr const char* kRemedy =
      "set .global_size of each part to the samples of all parts together; strategy.split() does it";
  if (batches.empty()) return;
  const int64_t whole = batches.begin()->global_size;
  int64_t samples = 0;
  int64_t replica = batches.first_replica().value();
  for (const Batch& batch : batches) {
    if (batch.global_size != whole) {
      throw UsageError(
          "LS-BATCH",
          fmt::format("{}() was given parts of one batch whose Batch::global_size is {} for replica {} and "
                      "{} for replica {}",
                      call, whole, batches.first_replica().value(), batch.global_size, replica),
          kRemedy);
    }
    samples += batch.samples();
    ++replica;
  }
  if (whole == 0 || whole >= samples) return;
  throw UsageError(
      "LS-BATCH",
      fmt::format("{}() was given {} whose Batch::global_size is {}", call, counted(samples, "sample"), whole),
      kRemedy);
}

void add_key(std::vector<BatchKey>& keys, const Batch& batch) {
  if (const BatchKey key = key_of(batch)) keys.push_back(key);
}

void add_origin(std::string& origins, const PerReplica<Batch>& batches) {
  if (batches.empty()) return;
  if (!origins.empty()) origins += " and ";
  origins += batches.begin()->origin.empty() ? kOwnBatches : batches.begin()->origin.c_str();
}

}  // namespace lockstep::internal::strategy
