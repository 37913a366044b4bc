// What gradients the replicas of all workers have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/reduce/loops/outer_product.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica
namespace lockstep::internal::inline variable {
class VariableState;
}  // namespace lockstep::internal::variable

namespace lockstep::internal::inline gradient {

class GradientTable;

/// Which gradients of a variable some replicas have.
enum class Gradients : char {
  kNone,    // none of them has one
  kOfZero,  // some have one, and all of these count as zero
  kSome,    // some have one that is to be added
};

/// What a replica's factors are made of, without their numbers.
struct FactorsOutline {
  struct Term {
    uint32_t samples;
    ZeroSums zero_sums;
  };
  uint32_t modes = 0;
  std::vector<Term> terms;  // empty: the replica adds nothing
};

/// The gradients of one variable.
struct GradientsOnWorkers {
  Gradients gradients = Gradients::kNone;
  /// By replica of all workers, where every gradient that is to be added is kept as factors; otherwise empty.
  std::vector<FactorsOutline> factors;
  /// Whether every gradient is sparse and kept as rows; `row_counts` then has by replica of all workers how many.
  bool in_rows = false;
  std::vector<uint32_t> row_counts;
};

/// What all workers tell each other before a step.
struct ToldOfGradients {
  std::vector<GradientsOnWorkers> gradients;  // by variable; empty where nobody was asked
  std::vector<std::string> reports;           // by worker
};

/// For each variable, what gradients the replicas of all workers have; `local` has those of this process, for the same
/// variables; and each worker's `report`, of any bytes. Every worker calls it with the same variables, while all
/// replicas are at rest. What one worker's `check()` throws is thrown there, and a PeerError on the others. Throws a
/// UsageError that names the variable and two workers where one of them has frozen it and the other has not, and what
/// the World throws.
ToldOfGradients gradients_on_workers(const ReplicaGroup& group,
                                     std::span<const std::shared_ptr<VariableState>> variables,
                                     const GradientTable& local, std::string_view report, FunctionRef<void()> check);

}  // namespace lockstep::internal::gradient
