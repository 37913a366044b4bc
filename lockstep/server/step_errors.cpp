#include "lockstep/server/step_errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>

#include "lockstep/core/error.h"
#include "lockstep/server/local/step_payloads.h"

namespace lockstep::internal::inline server {

namespace {

/// An error of a step's function, as the program gets it: a ReplicaError that is nested on the function's own.
std::exception_ptr error_of_function(int64_t step, int32_t worker, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    return std::make_exception_ptr(ReplicaError(step, {{ReplicaId(worker), message_of(error), error}}));
  }
}

}  // namespace

std::exception_ptr error_of(const StepClosed& closed) {
  const int32_t worker = closed.workers.empty() ? 0 : closed.workers.back();
  switch (closed.why) {
    case ClosedBecause::kFailed: return error_of_function(closed.step, worker, as<StepFailure>(closed.error).error);
    case ClosedBecause::kLostTooOften:
      return std::make_exception_ptr(
          PeerError("LS-PEER",
                    fmt::format("step {} was given to {} {} in turn, and each was lost or took too long", closed.step,
                                closed.workers.size() == 1 ? "worker" : "workers", fmt::join(closed.workers, ", ")),
                    "look at the logs of these workers, and at timeouts.step"));
    case ClosedBecause::kCancelled:
      return std::make_exception_ptr(CancelledError(
          "LS-CANCELLED",
          fmt::format("step {} was closed before it counted, by cancel() or by another step's error", closed.step),
          "schedule it again: the numbers of closed steps are not used again"));
    case ClosedBecause::kStreamEnded:
      return std::make_exception_ptr(
          EndOfStream("LS-END-OF-STREAM",
                      fmt::format("step {} found no more data: the streams of all workers have ended", closed.step),
                      "schedule as many steps as there are batches, or let the streams repeat()"));
  }
  return nullptr;
}

}  // namespace lockstep::internal::server
