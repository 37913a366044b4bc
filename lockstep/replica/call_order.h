// Whether replicas made the calls of a step in the same order, by the places in the program where they made them. Two
// calls that replicas swapped may be equal in all that they say of themselves; their places are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/replica/pool/round.h"

namespace lockstep::internal::inline replica {

/// Two replicas, of those that were given, and the calls in which their places differ.
struct SwappedCalls {
  std::size_t one = 0;
  std::size_t other = 0;
  std::vector<std::size_t> calls;
};

/// `places[r][k]` is where replica r made the k-th of some calls, each of which was equal on all replicas. Two replicas
/// have swapped calls where they made them in the same places but in another order, each of these places once. The
/// first such pair. (Where a replica comes to a place more often, it is in a loop, in which replicas may take one
/// branch or another.)
std::optional<SwappedCalls> swapped_calls(std::span<const std::vector<std::string>> places);

/// The calls without a name that all replicas of a run have made since they last came to one with a name, such as an
/// optimizer's step, or since the step began.
class CallOrder {
 public:
  /// Forgets the calls.
  void begin();
  /// All replicas have come to what `record` says; `arrivals` are the local ones, and `workers` is what all workers
  /// propose, empty where there is one. At a call with a name, and at the end of a step, returns the UsageError
  /// LS-MEETING-ORDER where replicas have swapped the calls before it; otherwise null. It is the same on all workers. A
  /// call is left out where the place of one of the replicas is not known.
  std::exception_ptr note(const RoundRecord& record, std::span<const Arrival> arrivals,
                          std::span<const Proposal> workers = {});

 private:
  struct Call {
    const char* what;
    std::source_location place;       // of all replicas
    std::vector<std::string> places;  // by replica, where they differ; otherwise empty
  };
  void add(const char* what, std::span<const Arrival> arrivals, std::span<const Proposal> workers);
  std::exception_ptr error() const;

  std::vector<Call> calls_;
  bool differ_ = false;             // of any call
  bool too_many_ = false;           // more calls than are compared: then none of them are judged
  std::vector<int64_t> worker_of_;  // by replica, where there are several workers and places differ
};

}  // namespace lockstep::internal::replica
