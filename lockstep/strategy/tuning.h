// The options of strategies that decide speed and memory, as one aggregate: docs/strategies.md#options-of-speed.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/core/tuning/copies.h"
#include "lockstep/core/tuning/factored_gradients.h"
#include "lockstep/core/tuning/slots.h"
#include "lockstep/core/tuning/update_form.h"

namespace lockstep {

/// The member `.tuning` of each strategy's options. No member changes a bit of any result, unless WireFormat::kBFloat16
/// rounds what travels as sums: `update_form` and `factored_gradients` decide what does. So a program may leave all of
/// them out, and may choose them for each machine. (`.wire` and `.denormals` decide bits, and are no part of it.)
///
/// Each member is the option of the same name that stands beside `.tuning`. It may be given in either place. The
/// constructor of the strategy throws a UsageError (LS-OPTION) where
/// - it is given in both, with different values; an option beside `.tuning` that has its default counts as not given;
/// - the strategy does not have that option, and the value is not the default.
struct Tuning {
  std::optional<Copies> copies = std::nullopt;                         // of each mirrored variable, on each worker
  std::optional<int64_t> verify_every = std::nullopt;                  // runs between checks of all variables; 0: never
  std::optional<FactoredGradients> factored_gradients = std::nullopt;  // of large weight matrices
  std::optional<UpdateForm> update_form = std::nullopt;                // with several workers: who updates what
  std::optional<Slots> slots = std::nullopt;                           // the same: who has the optimizers' slots
};

}  // namespace lockstep
