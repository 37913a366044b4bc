// What of a program a record keeps, so that a replay can say what differs.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline server {

struct TableState;

/// What a ParameterServerStrategy knows of itself when a run begins.
struct RecordedProgram {
  const Strategy& strategy;
  int64_t workers = 0;
  int64_t servers = 0;
  std::optional<int64_t> staleness = std::nullopt;
  int threads_per_replica = 1;
  std::string wire = {};
  int64_t counted = 0;           // steps that count already
  int64_t floor = 0;             // the number of the first step
  std::set<int64_t> above = {};  // higher numbers that are not scheduled again
  std::vector<std::string> steps = {};
  std::vector<const TableState*> tables = {};
};

/// As the JSON object of a record: with names, dtypes and shapes of all variables, and digests of their values and of
/// what optimizers count and are set to. The caller holds the strategy's gate.
std::string text_of(const RecordedProgram& program);
/// Throws a UsageError (LS-REPLAY-DIFFERS) that names all that differs, with both sides.
void require_same_program(const std::string& recorded, const std::string& now);

}  // namespace lockstep::internal::server
