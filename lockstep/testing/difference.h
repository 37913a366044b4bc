// Where two recordings of one program first differ. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/testing/recording.h"

namespace lockstep::internal::inline testing {

struct Difference {
  std::string fact;           // for an error: what differs, where, by how much
  int64_t steps = 0;          // how many were complete
  RecordedVariable variable;  // the first that differs; without a name where no single variable differs
  double movement = 1;        // how far it moved since the start, as a multiple of how far it moved in `expected`
  bool batch_norm = false;    // whether there are buffers of a BatchNorm
};

/// Compares moment by moment, variable by variable in order of creation. With a tolerance, compares values as
/// CompareOptions says; without one, the bits of values and of each replica's component.
std::optional<Difference> first_difference(const Recording& expected, const Recording& actual,
                                           std::optional<double> tolerance);

/// The one thing to check where `replicas` replicas do not give what one device gives.
std::string what_to_check(const Difference& difference, int64_t replicas);

}  // namespace lockstep::internal::testing
